package dev

import (
	"context"

	"github.com/gofrs/flock"
)

// Command says how one component of a cluster is started: with these arguments
// of the shardplane program.
type Command struct {
	// Name is the component's, such as shard-1.
	Name string
	// URL is where it answers, without a path.
	URL string
	// Args start with the subcommand.
	Args []string
}

// Deployment is a working directory in which everything is in place to start
// the components of a cluster, by somebody else than Run: tests that stop, kill
// and restart them one by one. It holds the directory's lock until Release.
type Deployment struct {
	// Commands are the components, in the order in which Run starts them.
	Commands []Command

	lock *flock.Flock
}

// Prepare makes, or checks, certificates, kubeconfigs and data directories of
// o, as Run does, and starts nothing.
func Prepare(ctx context.Context, o CompletedOptions) (*Deployment, error) {
	p, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	d := &Deployment{lock: p.lock}
	for _, c := range plan(o, p.certs) {
		d.Commands = append(d.Commands, Command{Name: c.name, URL: c.url, Args: c.args})
	}
	return d, nil
}

// Release unlocks the working directory.
func (d *Deployment) Release() error { return d.lock.Unlock() }
