package dev

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/gofrs/flock"
)

// errLocked is returned if another process holds the lock.
var errLocked = errors.New("in use by another shardplane dev")

// acquireLock takes the lock at path, without waiting. The error wraps errLocked if another
// process holds it. The kernel releases the lock when the process ends, however it ends; the
// file remains, because removing it could remove the lock of a process that just took it. It
// contains the process ID of its holder.
func acquireLock(path string) (*flock.Flock, error) {
	lock := flock.New(path)
	held, err := lock.TryLock()
	if err != nil {
		return nil, err
	}
	if !held {
		holder := ""
		if pid, err := os.ReadFile(path); err == nil && len(pid) > 0 {
			holder = fmt.Sprintf(" (pid %s)", bytes.TrimSpace(pid))
		}
		return nil, fmt.Errorf("%w%s", errLocked, holder)
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	return lock, nil
}
