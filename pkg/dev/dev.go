// Package dev runs a complete Shardplane on one machine for development: shards, front-proxy and cache server,
// each a child process of the same program. A working directory contains certificates, kubeconfigs, data and logs.
//
//	Options → Complete → Validate → RunCluster
//
// RunCluster first locks the working directory, probes the ports, and creates or checks all files (package pki). It
// starts no process before that, so that each problem results in one error and no partial start. Then package
// supervise starts the processes concurrently, restarts those that exit, and stops each before its dependencies:
//
//	front-proxy → other shards → root → cache server
//
// The package does not import the components. It uses only their flags and URLs.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/dev/supervise"
)

// ErrForced is returned if the cluster was killed instead of stopped in order.
var ErrForced = errors.New("killed before all components had stopped; the next start repairs the data if necessary")

// RunCluster runs a development cluster until ctx ends, then stops it in order and returns nil. It prints its
// progress to out. Closing force, which may be nil, kills all components. It returns an error if the cluster did not
// start, or ErrForced. No process, lock or ready-to-test file remains in any case.
func RunCluster(ctx context.Context, o CompletedOptions, out io.Writer, force <-chan struct{}) (err error) {
	started := time.Now()
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the shardplane program: %w", err)
	}
	p, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.lock.Unlock()) }()

	client, err := newReadyClient(p.certs)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	r := &run{
		options:    o,
		components: plan(o, p.certs),
		readyFile:  layout(o.WorkDir).shared(readyFile),
		started:    started,
	}
	r.term = newTerminal(out, r.components)
	defer func() { err = errors.Join(err, r.closeLogs()) }()
	if err := r.openLogs(); err != nil {
		return err
	}

	r.term.header(o, p)
	err = supervise.Run(ctx, supervised(r.components, program, r.logs, client), supervise.Config{
		StartTimeout: o.StartTimeout,
		Notify:       r.notify,
		AllReady:     r.allReady,
		Force:        force,
	})
	if err = errors.Join(r.explain(err), removeIfExists(r.readyFile)); err != nil {
		return err
	}
	select {
	case <-force:
		return ErrForced
	default:
		r.term.write("\nStopped. The data is kept in " + o.WorkDir + "\n")
		return nil
	}
}

type run struct {
	options    CompletedOptions
	components []Command
	logs       []*componentLog // by index of components
	term       *terminal
	readyFile  string
	started    time.Time
	stopping   bool // whether the terminal has shown it
}

func (r *run) openLogs() error {
	for _, c := range r.components {
		var onLine func(string)
		if r.options.Verbose {
			onLine = func(line string) { r.term.log(c.Name, line) }
		}
		log, err := openLog(c.logFile, onLine, func(err error) { r.term.note(err.Error()) })
		if err != nil {
			return err
		}
		r.logs = append(r.logs, log)
	}
	return nil
}

func (r *run) closeLogs() error {
	errs := make([]error, 0, len(r.logs))
	for _, l := range r.logs {
		errs = append(errs, l.close())
	}
	return errors.Join(errs...)
}

// notify shows an event. The supervisor serializes calls.
func (r *run) notify(e supervise.Event) {
	if e.Kind == supervise.Stopping && !r.stopping {
		r.stopping = true
		r.term.write("\nStopping; press Ctrl-C again to kill all components\n")
	}
	for i, c := range r.components {
		if c.Name != e.Component {
			continue
		}
		var lastMessage string
		if e.Kind == supervise.Exited && supervise.ExitCode(e.Err) >= 0 {
			lastMessage = r.logs[i].lastMessage()
		}
		r.term.event(c, e, lastMessage)
	}
}

// allReady creates the file that scripts wait for.
func (r *run) allReady() error {
	stamp := []byte(time.Now().UTC().Format(time.RFC3339Nano) + "\n")
	if err := pki.WriteFile(r.readyFile, stamp, 0o644); err != nil {
		return err
	}
	r.term.ready(r.options, time.Since(r.started))
	return nil
}

// explain adds the last log message and the log file of the component to the error of a failed start.
func (r *run) explain(err error) error {
	var failed *supervise.StartError
	if !errors.As(err, &failed) {
		return err
	}
	for i, c := range r.components {
		if c.Name != failed.Component {
			continue
		}
		if words := r.logs[i].lastMessage(); words != "" && supervise.ExitCode(err) >= 0 {
			return &supervise.StartError{Component: c.Name, Err: fmt.Errorf("%s (log: %s)", abbreviate(reason(words), 300), c.logFile)}
		}
		return fmt.Errorf("%w (log: %s)", failed, c.logFile)
	}
	return fmt.Errorf("%w (logs: %s*/*.log)", failed, layout(r.options.WorkDir).shared(""))
}
