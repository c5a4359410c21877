"""`mediaworker jobs`: list file jobs of a worker, print their results, and cancel them.

Without a job: the jobs of this key, the newest first. With one: that job.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from config.log.text import printable
from mediaworker.cli.terminal.output import for_output
from mediaworker.cli.worker import connection
from mediaworker.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="the id of a job")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="list at most so many (default 20)")
    parser.add_argument("--json", action="store_true", help="each job as a line of JSON")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--result", choices=("txt", "json", "srt", "vtt"), help="print the job's result")
    what.add_argument("--cancel", action="store_true", help="cancel the job; one that has ended is erased")
    connection.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if (args.result or args.cancel) and not args.job:
        raise argparse.ArgumentError(None, "--result and --cancel need a JOB")

    def show(job: dict[str, Any]) -> None:
        print(json.dumps(job, ensure_ascii=False) if args.json else job_line(job))

    async def ask(client: Client) -> None:
        if args.result:
            text = await client.job_result(args.job, args.result)
            print(for_output(text, sys.stdout).rstrip("\n"))
        elif args.cancel:
            left = await client.cancel_job(args.job)
            if left is None:
                print("erased")
            else:
                show(left)
        else:
            for job in [await client.job(args.job)] if args.job else await client.jobs(limit=args.limit):
                show(job)

    return connection.ask(args, ask, "batch")


def job_line(job: dict[str, Any]) -> str:
    """One job in one line; `job` as the worker shows it."""
    ratio = job["progress"]["ratio"]
    done = "" if ratio is None else f"{ratio:.0%}"
    why = job.get("error") or {}
    text = f"  {why.get('message', '') if isinstance(why, dict) else why}" if why else ""
    line = f"{job['id']}  {str(job['created_at'])[:19]}  {job['status']:9}  {done:>4}  {job['file']['name']}{text}"
    return printable(line)
