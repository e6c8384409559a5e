// Package exitcode says with which code a component's process exits, which is
// how it tells whoever supervises it whether to start it again.
package exitcode

import (
	"errors"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/etcd"
)

// Failure is the code of any error that may be gone next time.
const Failure = 1

// Of returns the exit code for what a component's Run or New returned.
func Of(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, etcd.ErrDataDirFormat), errors.Is(err, etcd.ErrDataDirCorrupt), errors.Is(err, etcd.ErrIdentity):
		return supervise.ExitData
	default:
		return Failure
	}
}
