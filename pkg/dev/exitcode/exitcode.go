// Package exitcode defines the exit codes of components, which determine whether the supervisor restarts them.
package exitcode

import (
	"errors"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/etcd"
)

// Failure is the code of errors that may be temporary.
const Failure = 1

// Of returns the exit code for the error of a component.
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
