package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

const (
	// verifyPause is the least time between two comparisons.
	verifyPause = 50 * time.Millisecond
)

var errNewData = errors.New("the cache server's data was lost and made anew")

// verifier compares digests of the replicas with those that the cache server has.
type verifier struct {
	*digests

	sessions func() map[string]*session
	// dataID names the data that the cache server had.
	dataID string
}

// run compares until ctx is done.
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
			klog.FromContext(ctx).V(2).Info("The digests of replicas could not be compared", "err", err)
			v.soon()
		}
		// Sessions that start together ask together; a server that does not answer is left alone, but not for so long
		// that somebody waits for it who finds it back.
		pause := verifyPause
		switch {
		case err != nil:
			if pause = v.config.AlertInterval; failing {
				pause *= 2
			}
			failing = true
		case failing:
			v.again()
			failing = false
		}
		kicked, rest = nil, time.After(min(pause, v.config.DigestInterval))
	}
}

// again has tried what waits for its next try: the cache server answers again.
func (v *verifier) again() {
	for _, s := range v.sessions() {
		s.again()
	}
}

// verify compares once, and has what is different repaired.
func (v *verifier) verify(ctx context.Context) error {
	sessions, before := v.sessions(), map[*session]*moment{}
	breaks, waiting := v.breaks.Load(), map[*session]bool{}
	for _, s := range sessions {
		waiting[s] = s.waits()
		if s.started.Load() {
			before[s] = s.expected.now(s.ledger)
		}
	}
	answer, err := v.ask(ctx, "")
	if err != nil {
		return err
	}
	if v.dataID != "" && v.dataID != answer.DataID {
		for _, s := range sessions {
			if s.asked.Load() {
				s.end(fmt.Errorf("%w: %w", errOtherData, errNewData))
			}
		}
		before = nil
	}
	v.dataID = answer.DataID
	var errs []error
	for resource, s := range sessions {
		if waiting[s] {
			s.asked.Store(true)
			s.roots <- answer
		}
		expected := before[s]
		if expected != nil && expected.root != rootOf(answer, resource) {
			errs = append(errs, s.verify(ctx))
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		v.checked.Store(breaks)
	}
	return err
}
