package garbagecollector

import (
	"errors"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// errBusy has an object looked at later, when others of slow logical clusters are done.
var errBusy = errors.New("too many deletions wait for webhooks")

const (
	// workers are how many objects are looked at at a time.
	workers = 16
	// deleteTimeout is how long one deletion may take, webhooks included.
	deleteTimeout = 10 * time.Second
	// slow is from when on a deletion has its logical cluster counted among the slow ones.
	slow = time.Second
	// slowWorkers are how many workers all slow logical clusters have together.
	slowWorkers = workers / 4
	// slowFor is how long a logical cluster is slow after its last slow deletion.
	slowFor = time.Minute
)

// lanes keep logical clusters whose webhooks and policies take long, at deletions that they
// judge, from taking the workers from all others.
type lanes struct {
	mu    sync.Mutex
	slow  map[logicalcluster.Name]time.Time
	taken int
}

// enter begins a deletion; done ends it. The error is errBusy where slow ones have all their
// workers.
func (l *lanes) enter(cluster logicalcluster.Name) (done func(error), err error) {
	began := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	isSlow := began.Sub(l.slow[cluster]) < slowFor
	if isSlow {
		if l.taken >= slowWorkers {
			return nil, errBusy
		}
		l.taken++
	}
	return func(err error) {
		took := time.Since(began)
		l.mu.Lock()
		defer l.mu.Unlock()
		if isSlow {
			l.taken--
		}
		if took >= slow || apierrors.IsTimeout(err) {
			if l.slow == nil {
				l.slow = map[logicalcluster.Name]time.Time{}
			}
			for other, since := range l.slow {
				if began.Sub(since) >= slowFor {
					delete(l.slow, other)
				}
			}
			l.slow[cluster] = time.Now()
		}
	}, nil
}
