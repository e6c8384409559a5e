package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// verifyPause is the minimum interval of comparisons.
const verifyPause = 50 * time.Millisecond

var errNewData = errors.New("the cache server has lost its data")

// verifier compares the digests of replicas with those of the cache server.
type verifier struct {
	*digests

	sessions func() map[string]*session
	// dataID identifies the data of the cache server.
	dataID string
}

func (v *verifier) run(ctx context.Context) {
	ticker := time.NewTicker(jitter(v.config.DigestInterval))
	defer ticker.Stop()
	kicked := v.kicked
	var rest <-chan time.Time
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-kicked:
		case <-rest:
			rest, kicked = nil, v.kicked
			continue
		}
		err := v.verify(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to compare the digests of replicas", "err", err)
			v.kick()
		}
		// After errors, the pause is longer, but short enough to detect the recovery soon. The minimum pause combines
		// requests of sessions that start together.
		pause := verifyPause
		switch {
		case err != nil:
			if pause = v.config.AlertInterval; failing {
				pause *= 2
			}
			failing = true
		case failing:
			v.retryPending()
			failing = false
		}
		kicked, rest = nil, time.After(min(pause, v.config.DigestInterval))
	}
}

// retryPending retries pending keys, because the cache server responds again.
func (v *verifier) retryPending() {
	for _, s := range v.sessions() {
		s.retryPending()
	}
}

// verify compares once and repairs the differences.
func (v *verifier) verify(ctx context.Context) error {
	sessions, before := v.sessions(), map[*session]*moment{}
	breaks, waiting := v.breaks.Load(), map[*session]bool{}
	for _, s := range sessions {
		waiting[s] = s.awaitsDigests()
		if s.started.Load() {
			before[s] = s.expected.now(s.ledger)
		}
	}
	response, err := v.fetch(ctx, "")
	if err != nil {
		return err
	}
	if v.dataID != "" && v.dataID != response.DataID {
		for _, s := range sessions {
			if s.requested.Load() {
				s.end(fmt.Errorf("%w: %w", errOtherData, errNewData))
			}
		}
		before = nil
	}
	v.dataID = response.DataID
	var errs []error
	for resource, s := range sessions {
		if waiting[s] {
			s.requested.Store(true)
			s.roots <- response
		}
		expected := before[s]
		if expected != nil && expected.root != rootOf(response, resource) {
			errs = append(errs, s.verify(ctx))
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		v.checked.Store(breaks)
	}
	return err
}
