"""Starting the processes of a plan, keeping them up, and ending them without leaving an orphan."""
