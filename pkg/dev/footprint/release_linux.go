package footprint

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// releaseProgram gives back the memory into which the kernel has mapped
// this program's code and constants. Much of it is touched once, while packages
// initialise and servers are assembled; what is needed again comes back from
// the page cache on first touch, at no more than the cost of a page fault.
//
// Only mappings that cannot be written are released: giving back a writable one
// would undo what was written to it.
func releaseProgram() (err error) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("list mappings: %w", err)
	}
	defer func() { err = errors.Join(err, maps.Close()) }()
	ranges, err := readOnlyMappings(maps, program)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, r.start, r.end-r.start, syscall.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release mapping: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct {
	start, end uintptr
}

// readOnlyMappings returns the private mappings of file that cannot be written,
// out of the lines of /proc/<pid>/maps:
//
//	00400000-02466000 r-xp 00000000 fe:00 1234   /usr/bin/shardplane
func readOnlyMappings(maps io.Reader, file string) ([]mapping, error) {
	var found []mapping
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		line := lines.Text()
		var m mapping
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &m.start, &m.end, &mode); err != nil {
			return nil, fmt.Errorf("unexpected mapping %q: %w", line, err)
		}
		if strings.HasSuffix(line, " "+file) && (mode == "r-xp" || mode == "r--p") {
			found = append(found, m)
		}
	}
	return found, lines.Err()
}
