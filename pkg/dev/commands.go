package dev

import (
	"context"

	"github.com/gofrs/flock"
)

// Command starts a component with the shardplane program.
type Command struct {
	// Name is the name of the component, e.g. shard-1.
	Name string
	// URL is the address of the component, without a path.
	URL string
	// Args are the arguments, beginning with the subcommand.
	Args []string
}

// Deployment is a working directory that is ready to start the components of a cluster without Run, e.g. in
// tests that stop, kill and restart them one by one. Release unlocks the directory.
type Deployment struct {
	// Commands start the components, in the order of Run.
	Commands []Command

	lock *flock.Flock
}

// Prepare creates or checks certificates, kubeconfigs and data directories, like Run, but starts nothing.
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
