"""A plan as files for those who launch by other means: shell scripts, systemd units, Slurm, Kubernetes."""
