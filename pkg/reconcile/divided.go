package reconcile

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/lifecycle"
)

// Divider divides the logical clusters among the replicas of a server, as a ring.Ring does.
type Divider interface {
	Gate
	Gains
}

// NewDivided makes the enabled controllers of a catalogue that are Divided, as NewManager does.
// Each works on the logical clusters that come to this replica by the Divider, and begins with
// all that its sources tell then, as a controller does that starts. Without a Divider, which is
// for the only replica, it works on all.
func NewDivided[D any](catalogue []Descriptor[D], deps D, by Divider) (*lifecycle.Group, error) {
	return newManager(catalogue, deps, by, Divided)
}

// divide returns the controller for a part of its keys.
func (c *Controller[K]) divide(by Divider) Runnable {
	config := c.config
	config.Gate = by
	config.Sources = []Source[K]{anew(config.Sources, by)}
	return New(config)
}

// anew begins sources whenever something comes to this process, and has them tell so of what the
// Gate refused before.
func anew[K comparable](sources []Source[K], gains Gains) Source[K] {
	return func(ctx context.Context, queue Queue[K]) (func(), error) {
		var stops []func()
		end := func(stops []func()) {
			for _, stop := range slices.Backward(stops) {
				stop()
			}
		}
		remove := gains.OnGain(func(client.Ranges) {
			former := stops
			stops = nil
			for n, source := range sources {
				stop, err := source(ctx, queue)
				if err != nil {
					klog.FromContext(ctx).Error(err, "Cannot watch what a controller needs, until something else comes to this replica", "source", fmt.Sprint(n))
					continue
				}
				stops = append(stops, stop)
			}
			end(former) // not before: nothing is to be missed in between
		})
		return func() {
			remove()
			end(stops)
		}, nil
	}
}
