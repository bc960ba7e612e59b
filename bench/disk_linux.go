package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// written returns how many bytes were written to the disk that a file is on, by all processes. The
// counter of one process (write_bytes) is too high: if the process writes a part of a large block of the
// page cache, it counts the whole block.
func written(path string) (int64, error) {
	var is unix.Stat_t
	if err := unix.Stat(path, &is); err != nil {
		return 0, err
	}
	stat := fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(is.Dev), unix.Minor(is.Dev))
	b, err := os.ReadFile(stat)
	if os.IsNotExist(err) {
		return 0, nil // the file system is in memory
	}
	if err != nil {
		return 0, err
	}
	const sectors, sector = 6, 512
	fields := strings.Fields(string(b))
	if len(fields) <= sectors {
		return 0, fmt.Errorf("%s has %d fields", stat, len(fields))
	}
	n, err := strconv.ParseInt(fields[sectors], 10, 64)
	return sector * n, err
}
