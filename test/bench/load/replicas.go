package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/test/bench/measure"
)

// ReplicaOptions say which replica Replica is.
type ReplicaOptions struct {
	// Ring is the name that all replicas share.
	Ring string
	// AtClient has the replica ask for all objects, and drop those of others itself.
	AtClient bool
}

// ReplicaState is what a replica says of itself, a line each.
type ReplicaState struct {
	// Bytes came in answers, Updates were told to its handler, and Objects are held.
	Bytes, Updates, Objects int64
	// Members are those of the ring, once nothing moves and all is read.
	Members int
}

// sayInterval is how often a replica says what it has.
const sayInterval = 250 * time.Millisecond

// unselected asks for all objects, whatever its caller wants.
type unselected struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (u unselected) RoundTrip(r *http.Request) (*http.Response, error) {
	if query := r.URL.Query(); query.Has("shardSelector") {
		query.Del("shardSelector")
		r = r.Clone(r.Context())
		r.URL.RawQuery = query.Encode()
	}
	return u.RoundTripper.RoundTrip(r)
}

// Replica holds its part of all ConfigMaps, by UID, as it has it from a ring, until ctx ends.
func Replica(ctx context.Context, shard Target, o ReplicaOptions, out io.Writer) error {
	var bytes, updates, objects atomic.Int64
	server := shard.rest()
	if o.AtClient {
		server.Wrap(func(rt http.RoundTripper) http.RoundTripper { return unselected{rt} })
	}
	factory, err := client.NewFactory(server, client.WithByteCounter(func(n int) { bytes.Add(int64(n)) }))
	if err != nil {
		return err
	}
	replicas, err := ring.New(ring.Config{
		Name: o.Ring, ID: "bench", Key: client.ByUID, Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: namespace,
	})
	if err != nil {
		return err
	}
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: replicas.Holds()})
	informer.AddEventHandler(client.Handler[*corev1.ConfigMap]{
		OnAdd:    func(*corev1.ConfigMap, bool) { objects.Add(1) },
		OnUpdate: func(_, _ *corev1.ConfigMap) { updates.Add(1) },
		OnDelete: func(*corev1.ConfigMap, bool) { objects.Add(-1) },
		OnLeave:  func(*corev1.ConfigMap, client.Leave) { objects.Add(-1) },
	})
	return replicas.Run(ctx, informer.Run, func(ctx context.Context) error {
		say := json.NewEncoder(out)
		ticker := time.NewTicker(sayInterval)
		defer ticker.Stop()
		for {
			state := ReplicaState{Bytes: bytes.Load(), Updates: updates.Load(), Objects: objects.Load()}
			if s := replicas.Status(); s.Waits == "" && informer.HasSynced() {
				state.Members = len(s.Members)
			}
			_ = say.Encode(state)
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
		}
	})
}

// Eighth has an informer that holds a half of all objects get an eighth of them in addition, by
// UID, and compares the bytes of that with those of a list of that eighth.
func Eighth(ctx context.Context, shard Target) (results []measure.Result, err error) {
	var bytes, moved, rest atomic.Int64
	factory, err := client.NewFactory(shard.rest(), client.WithByteCounter(func(n int) { bytes.Add(int64(n)) }))
	if err != nil {
		return nil, err
	}
	const eighth = 1 << 61
	var parts [3]client.Ranges // a half, the eighth after that, and both
	for n, r := range []client.Range{{First: 0, Last: 4*eighth - 1}, {First: 4 * eighth, Last: 5*eighth - 1}, {First: 0, Last: 5*eighth - 1}} {
		if parts[n], err = client.NewRanges(client.ByUID, r); err != nil {
			return nil, err
		}
	}
	count := func(obj *corev1.ConfigMap) {
		if parts[1].Contains(obj) {
			moved.Add(1)
		} else {
			rest.Add(1)
		}
	}
	ranges := client.NewChangingRanges(parts[0])
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: ranges})
	informer.AddEventHandler(client.Handler[*corev1.ConfigMap]{
		OnAdd:    func(obj *corev1.ConfigMap, _ bool) { count(obj) },
		OnUpdate: func(_, obj *corev1.ConfigMap) { count(obj) },
		OnDelete: func(obj *corev1.ConfigMap, _ bool) { count(obj) },
		OnLeave:  func(obj *corev1.ConfigMap, _ client.Leave) { count(obj) },
	})
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- informer.Run(running) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	if err := until(ctx, informer.HasSynced); err != nil {
		return nil, fmt.Errorf("reading a half of the objects: %w", err)
	}
	before, told := bytes.Load(), rest.Load()
	began := time.Now()
	ranges.Set(parts[2])
	if err := until(ctx, func() bool { return informer.Holds().Equal(parts[2]) }); err != nil {
		return nil, fmt.Errorf("reading an eighth in addition: %w", err)
	}
	took := time.Since(began)
	// Both streams become one after that, which is to be in what it costs.
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(2 * time.Second):
	}
	came := bytes.Load() - before
	listed, err := listBytes(ctx, factory, parts[1].String())
	if err != nil {
		return nil, err
	}
	of := fmt.Sprintf("%d objects come to an informer that has %d", moved.Load(), told)
	return []measure.Result{
		{Name: of + ": until it is complete", Target: "informer", Value: float64(took) / float64(time.Millisecond), Unit: "ms"},
		{Name: of + ": bytes", Target: "informer", Value: float64(came) / 1024, Unit: "KiB", Ratio: float64(came) / float64(listed), Note: "against a list of these"},
		{Name: of + ": events about the rest", Target: "informer", Value: float64(rest.Load() - told), Unit: "events"},
	}, nil
}

// listBytes returns how large a list of what a selector selects is.
func listBytes(ctx context.Context, factory *client.Factory, selector string) (int64, error) {
	config := factory.Wildcard().Config()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/api/v1/configmaps?shardSelector="+url.QueryEscape(selector), http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	answer, err := factory.HTTPClient().Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	n, err := io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("listing the objects that move: %s", answer.Status))
	}
	return n, err
}

// Updates makes updates for a while, and returns how many there were, and how long they took.
func Updates(ctx context.Context, target Target, p Population, o WatchOptions) (int64, time.Duration, error) {
	updates, elapsed, err := updateObjects(ctx, target, p, o)
	if err != nil {
		return 0, 0, err
	}
	return int64(updates.recorder.Count()), elapsed, nil
}
