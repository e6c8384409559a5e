package cacheserver

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// repeat calls do in intervals until ctx is done. It logs errors with the message problem.
func repeat(ctx context.Context, interval time.Duration, problem string, do func(ctx context.Context) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, problem)
		}
	}
}
