package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

var errNotYet = errors.New("not yet")

// handovers are replicas of a controller that hand over at a version.
type handovers struct {
	*testing.T

	server *clienttest.Server

	mu sync.Mutex
	// worked are what was worked on, by replica.
	worked map[int]map[client.Key]int
	// failing has the work on a key fail.
	failing map[client.Key]bool
}

func (h *handovers) start(replica int) (r *ring.Ring, stop func()) {
	h.Helper()
	factory, err := client.NewFactory(h.server.ClientConfig())
	require.NoError(h, err)
	r, err = ring.New(ring.Config{
		Name: "handed", ID: fmt.Sprint("replica", replica), Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: "default", Key: client.ByCluster,
		LeaseDuration: 4 * time.Second, RenewDeadline: 2 * time.Second, RenewInterval: 300 * time.Millisecond, GracePeriod: time.Second, RebalanceDelay: 50 * time.Millisecond,
		LoadTimeout: time.Minute, Handover: ring.Changed,
	})
	require.NoError(h, err)
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: r.Holds()})
	controller := reconcile.New(reconcile.Config[client.Key]{
		Name: fmt.Sprint("handed", replica), Gate: r, MaxBackoff: 100 * time.Millisecond,
		Sources: []reconcile.Source[client.Key]{reconcile.HandedOver("handed", informer, r)},
		Reconcile: func(_ context.Context, key client.Key) (reconcile.Result, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.worked[replica][key]++
			if h.failing[key] {
				return reconcile.Result{}, errNotYet
			}
			return reconcile.Result{}, nil
		},
	})
	h.mu.Lock()
	h.worked[replica] = map[client.Key]int{}
	h.mu.Unlock()
	ctx, cancel := context.WithCancel(h.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, informer.Run, controller.Run) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.Errorf("replica %d: %v", replica, err)
		}
		factory.CloseIdleConnections()
	})
	h.Cleanup(stop)
	return r, stop
}

func (h *handovers) put(n uint64, content string) client.Key {
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Annotations: map[string]string{logicalcluster.AnnotationKey: strconv.FormatUint((n+1)*0x9e3779b97f4a7c15, 36)}},
		Data:       map[string]string{"content": content},
	}
	h.server.Put(h, kinds.ConfigMaps.GroupVersionResource, obj)
	return client.KeyOf(obj)
}

func (h *handovers) count(replica int, key client.Key) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.worked[replica][key]
}

func (h *handovers) eventually(what string, f func() bool) {
	h.Helper()
	require.Eventually(h, f, 2*time.Minute, 5*time.Millisecond, what)
}

// divided waits until each of the rings has its part.
func (h *handovers) divided(rings ...*ring.Ring) {
	h.Helper()
	h.eventually("the rings have divided all", func() bool {
		for _, r := range rings {
			s := r.Status()
			owned, coming := r.Ranges()
			if len(s.Members) != len(rings) || s.Waits != "" || owned.Empty() || !coming.Empty() {
				return false
			}
		}
		return true
	})
}

// TestHandedOver: a replica that takes over works on what the other one has left to do and what
// changed meanwhile, and on nothing else.
func TestHandedOver(t *testing.T) {
	const clusters = uint64(40)
	h := &handovers{T: t, server: clienttest.New(t, kinds.Scheme), worked: map[int]map[client.Key]int{}, failing: map[client.Key]bool{}}
	var keys []client.Key
	for n := range clusters {
		keys = append(keys, h.put(n, "first"))
	}
	one, stop := h.start(1)
	h.divided(one)
	h.eventually("the first one does all", func() bool {
		for _, key := range keys {
			if h.count(1, key) == 0 {
				return false
			}
		}
		return true
	})
	// In each of these something is left to do when it moves.
	h.mu.Lock()
	for n := range clusters / 4 {
		h.failing[keys[n]] = true
	}
	h.mu.Unlock()
	before := map[client.Key]int{}
	for n := range clusters / 4 {
		before[keys[n]] = h.count(1, keys[n])
		h.put(n, "second")
	}
	h.eventually("these fail", func() bool {
		for key, n := range before {
			if h.count(1, key) < n+2 {
				return false
			}
		}
		return true
	})
	two, _ := h.start(2)
	h.divided(one, two)
	owned, _ := two.Ranges()
	moved := func(key client.Key) bool { return owned.ContainsCluster(key.Cluster) }
	some := 0
	h.eventually("the second one goes on with what fails", func() bool {
		some = 0
		for key := range before {
			if moved(key) {
				if some++; h.count(2, key) == 0 {
					return false
				}
			}
		}
		return true
	})
	require.Positive(t, some)
	for _, key := range keys[clusters/4:] {
		require.Zero(t, h.count(2, key), "%s was worked off before", key)
	}

	// What is deleted and changed while the first one leaves is worked on by somebody.
	h.mu.Lock()
	clear(h.failing)
	h.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		stop()
	}()
	total := func(key client.Key) int { return h.count(1, key) + h.count(2, key) }
	worked := map[client.Key]int{}
	for n := clusters / 2; n < clusters; n++ {
		worked[keys[n]] = total(keys[n])
		if n%2 == 0 {
			h.put(n, "third")
		} else {
			h.server.Delete(t, kinds.ConfigMaps.GroupVersionResource, "", keys[n].Cluster, "default", "a")
		}
	}
	<-done
	h.divided(two)
	h.eventually("all changes are worked on", func() bool {
		for key, n := range worked {
			if total(key) <= n {
				return false
			}
		}
		return true
	})
	for n := clusters / 4; n < clusters/2; n++ {
		require.Zero(t, h.count(2, keys[n]), "%s was worked off before", keys[n])
	}
}
