"""Asks an S3 server for a sign of life."""

import urllib3
from minio import Minio
from minio.error import MinioException, S3Error


def s3_problem(
    endpoint: str, access_key: str, secret_key: str, *, secure: bool, seconds: float
) -> str | None:
    """Lists the buckets, with one try; None when the server answers to the credentials, else what is wrong.

    Credentials that may not list buckets are not wrong.
    """
    pool = urllib3.PoolManager(timeout=seconds, retries=False)
    client = Minio(endpoint, access_key=access_key, secret_key=secret_key, secure=secure, http_client=pool)
    try:
        client.list_buckets()
    except S3Error as error:
        return None if error.code == "AccessDenied" else f"{error.code}: {error.message}"
    except (MinioException, urllib3.exceptions.HTTPError, ValueError) as error:
        return str(error)
    finally:
        pool.clear()
    return None
