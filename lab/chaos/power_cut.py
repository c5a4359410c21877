"""What a power cut leaves of a folder: a library under the worker keeps a copy of each file and each folder as it was
when it was last synced, and `cut` builds the folder that a disk without anything else would show.

This is stricter than most file systems: a file whose folder was not synced has no name, one that was not synced itself
is empty, a write-ahead log ends where its last sync was.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* <folder>/<inode> is the copy of a file, or the list of a folder: a line `<inode> <name>` for each entry. Both are
   written beside and renamed, so that a kill in here leaves the copy of the sync before. */
static void record(int fd) {
    const char *folder = getenv("POWER_CUT_FOLDER");
    struct stat status;
    if (!folder || fstat(fd, &status) || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) return;
    char part[4096], copy[4096], self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    snprintf(copy, sizeof copy, "%s/%lu", folder, (unsigned long)status.st_ino);
    snprintf(part, sizeof part, "%s/%lu-%d-%d", folder, (unsigned long)status.st_ino, (int)getpid(), (int)gettid());
    FILE *out = fopen(part, "wb");
    if (!out) abort();
    if (S_ISDIR(status.st_mode)) {
        DIR *found = opendir(self);
        for (struct dirent *entry; found && (entry = readdir(found));)
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                fprintf(out, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
        if (found) closedir(found);
    } else {
        /* By the descriptor itself: to open and close the file would drop the locks that SQLite holds on it. */
        char buffer[1 << 16];
        int in = -1;
        off_t at = 0;
        ssize_t count = pread(fd, buffer, sizeof buffer, 0);
        if (count < 0 && errno == EBADF) { /* opened for writing alone, as SQLite never does */
            in = open(self, O_RDONLY | O_CLOEXEC);
            count = pread(in, buffer, sizeof buffer, 0);
        }
        for (; count > 0; count = pread(in < 0 ? fd : in, buffer, sizeof buffer, at)) {
            fwrite(buffer, 1, count, out);
            at += count;
        }
        if (in >= 0) close(in);
    }
    fclose(out);
    rename(part, copy);
}

static int synced(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    record(fd);
    return real(fd);
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
"""


@functools.cache
def library() -> Path:
    """Built once, and gone with this process."""
    folder = Path(tempfile.mkdtemp(prefix="power-cut-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, built = folder / "power_cut.c", folder / "power_cut.so"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", built, source, "-ldl"], check=True)
    return built


class Disk:
    """The folder `path`, and what is known to be on its disk. `environ` is for the processes that write there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copies = path.with_name(f"{path.name}-synced")
        self._copies.mkdir()
        self._cuts = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def environ(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(library()), "POWER_CUT_FOLDER": str(self._copies)}

    def cut(self) -> None:
        """The power goes: nobody may be writing any more. What was not synced is gone."""
        self._cuts += 1
        left = self.path.with_name(f"{self.path.name}-{self._cuts}")
        names = self._listed(self.path.parent)
        if names.get(self.path.name) == self.path.stat().st_ino:
            self._build(self.path.stat().st_ino, left)
        shutil.rmtree(self.path)
        for copy in self._copies.iterdir():
            copy.unlink()
        if left.exists():
            # What is there now is on the disk.
            left.rename(self.path)
            for found in (self.path.parent, self.path, *self.path.rglob("*")):
                self._note(found)

    def _listed(self, folder: Path) -> dict[str, int]:
        try:
            lines = (self._copies / str(folder.stat().st_ino)).read_text().splitlines()
        except FileNotFoundError:
            return {}
        return {name: int(inode) for inode, name in (line.split(" ", 1) for line in lines)}

    def _build(self, inode: int, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        copy = self._copies / str(inode)
        for line in copy.read_text().splitlines() if copy.exists() else ():
            number, name = line.split(" ", 1)
            if name.endswith("-shm"):
                continue  # SQLite makes it anew
            found = self._copies / number
            if (self.path / name).is_dir():
                self._build(int(number), folder / name)
            elif found.exists():
                shutil.copyfile(found, folder / name)
            else:
                (folder / name).touch()

    def _note(self, path: Path) -> None:
        """As the library does."""
        copy = self._copies / str(path.stat().st_ino)
        if path.is_dir():
            copy.write_text("".join(f"{os.stat(found).st_ino} {found.name}\n" for found in path.iterdir()))
        else:
            shutil.copyfile(path, copy)
