from tests.mechanisms.threads import one_thread  # noqa: F401
