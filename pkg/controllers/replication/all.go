package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// All are the controllers of a shard, one for each cache server. None waits for another. They
// implement reconcile.Runnable together.
type All []*Controller

// NewAll returns the controllers that configs describe, of one shard with one table.
func NewAll(configs ...Config) (All, error) {
	all, of := make(All, 0, len(configs)), &epoch{}
	for _, config := range configs {
		config.epoch = of
		c, err := New(config)
		if err != nil {
			return nil, fmt.Errorf("cache %q: %w", config.CacheName, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// Name returns the name that they have together.
func (All) Name() string { return Name }

// Run runs all until ctx is done, or one fails.
func (a All) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(a))
	for i, c := range a {
		wg.Go(func() {
			if errs[i] = c.Run(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
