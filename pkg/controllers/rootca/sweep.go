package rootca

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// perSecond bounds the writes of a sweep.
	perSecond = 100
	// timeout bounds one of them.
	timeout = 30 * time.Second
	// again is when namespaces are looked through again after a write has failed.
	again = 30 * time.Second
)

func newLimit() flowcontrol.RateLimiter { return flowcontrol.NewTokenBucketRateLimiter(perSecond, 1) }

// sweeper looks through all namespaces, at the start and whenever the CA has changed.
// It writes by itself, one after the other, and not by the queue: new namespaces do
// not wait for old ones.
type sweeper struct {
	*reconciler
	namespaces func() []*corev1.Namespace
	// wait waits for the next write.
	wait func(ctx context.Context) error
}

func sweeping(s *sweeper) reconcile.Source[client.Key] {
	return func(ctx context.Context, _ reconcile.Queue[client.Key]) (func(), error) {
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(ctx)
		}()
		return func() {
			cancel()
			<-ended
		}, nil
	}
}

func (s *sweeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		ca := s.ca.current.Load()
		var retry <-chan time.Time
		if failed := s.sweep(ctx); failed > 0 {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
		case <-ca.replaced:
		case <-retry:
		}
	}
}

// sweep mends what is to be mended, and returns of how many namespaces it could not.
func (s *sweeper) sweep(ctx context.Context) (failed int) {
	logger := klog.FromContext(ctx)
	written, start := 0, time.Now()
	for _, namespace := range s.namespaces() {
		key := client.KeyOf(namespace)
		missing, wrong := s.look(key)
		if !missing && !wrong {
			continue
		}
		if s.wait(ctx) != nil {
			return failed // the end
		}
		switch err := s.write(ctx, key, missing, wrong); {
		case err == nil, apierrors.IsConflict(err): // of which an event tells
			written++
		case ctx.Err() != nil:
			return failed
		default:
			failed++
			logger.V(2).Info("A namespace has not got the root CA, trying again", "namespace", key.String(), "reason", err.Error())
		}
	}
	if written > 0 || failed > 0 {
		logger.Info("Namespaces have got the root CA", "namespaces", written, "failed", failed, "seconds", int(time.Since(start).Seconds()))
	}
	return failed
}

func (s *sweeper) write(ctx context.Context, key client.Key, missing, wrong bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.mend(ctx, key, missing, wrong)
}
