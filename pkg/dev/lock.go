//go:build unix

package dev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lock is the lock of a working directory. The kernel releases it when the
// process ends, however it ends.
type lock struct {
	file *os.File
}

// errLocked says that another process holds a lock.
var errLocked = errors.New("in use by another shardplane dev")

// acquireLock takes the lock at path, without waiting. The error wraps
// errLocked where another process holds it.
func acquireLock(path string) (*lock, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			holder := readHolder(file)
			return nil, errors.Join(fmt.Errorf("%w%s", errLocked, holder), file.Close())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		// The former holder may have removed the file between the two calls
		// above; the lock would then be on a file that nobody else finds.
		if !isSameFile(file, path) {
			if err := file.Close(); err != nil {
				return nil, err
			}
			continue
		}
		l := &lock{file: file}
		if err := l.sign(); err != nil {
			return nil, errors.Join(err, l.release())
		}
		return l, nil
	}
}

// sign writes the process id into the lock, for whoever finds it locked.
func (l *lock) sign() error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// release removes the lock file and gives the lock back.
func (l *lock) release() error {
	return errors.Join(os.Remove(l.file.Name()), l.file.Close())
}

// readHolder returns " (pid N)" of the process that wrote the lock file, and
// nothing where it does not say.
func readHolder(file *os.File) string {
	data, err := io.ReadAll(io.LimitReader(file, 20))
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

func isSameFile(file *os.File, path string) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	found, err := os.Stat(path)
	return err == nil && os.SameFile(opened, found)
}
