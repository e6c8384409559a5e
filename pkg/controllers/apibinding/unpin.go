package apibinding

import (
	"context"
	"time"

	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// UnpinningName is the name of the controller that deletes copies of schemas.
	UnpinningName = "boundschemas"
	// unpinInterval is how often it looks for some that nothing binds.
	unpinInterval = 5 * time.Minute
)

// NewUnpinning returns a controller that calls unpin now and then.
func NewUnpinning(unpin func(context.Context) error) *reconcile.Controller[struct{}] {
	return reconcile.New(reconcile.Config[struct{}]{
		Name:    UnpinningName,
		Workers: 1,
		Reconcile: func(ctx context.Context, _ struct{}) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: unpinInterval}, unpin(ctx)
		},
		Sources: []reconcile.Source[struct{}]{reconcile.Once(struct{}{})},
	})
}
