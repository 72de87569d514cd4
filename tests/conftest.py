from hypothesis import settings

# The first call of some torch functions imports modules, which is slower than a property's usual deadline.
settings.register_profile("medic", deadline=None)
settings.load_profile("medic")
