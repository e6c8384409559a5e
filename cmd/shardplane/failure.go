package main

import (
	"github.com/shardplane/shardplane/pkg/dev/exitcode"
	"github.com/shardplane/shardplane/pkg/dev/supervise"
)

// failure is an error of a command after its flags and arguments were accepted.
type failure struct {
	error
	code int
}

func (f *failure) Unwrap() error { return f.error }

func failed(err error) error {
	if err == nil {
		return nil
	}
	return &failure{error: err, code: exitcode.Of(err)}
}

// invalid marks err as an error of the flags; nil stays nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return &failure{error: err, code: supervise.ExitUsage}
}
