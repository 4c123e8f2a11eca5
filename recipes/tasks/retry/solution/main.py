def retry_count(config):
    return 3 if config.get("retries") is None else config["retries"]
