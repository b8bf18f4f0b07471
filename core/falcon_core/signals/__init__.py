"""Turn ring records into what an agent reports of its rank, and compare the ranks of a job."""
