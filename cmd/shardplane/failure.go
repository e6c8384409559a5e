package main

import (
	"github.com/shardplane/shardplane/pkg/dev/exitcode"
	"github.com/shardplane/shardplane/pkg/dev/supervise"
)

// failure is the error of a command that had begun.
type failure struct {
	error
	code int
}

func (f *failure) Unwrap() error { return f.error }

// failed marks err as the failure of a command that had begun; nil stays nil.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return &failure{error: err, code: exitcode.Of(err)}
}

// invalid marks err as the fault of the flags; nil stays nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return &failure{error: err, code: supervise.ExitUsage}
}
