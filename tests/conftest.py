"""What holds for every test: hypothesis measures no time, which depends on what else the machine does."""

from hypothesis import settings

settings.register_profile("pdctl", deadline=None)
settings.load_profile("pdctl")
