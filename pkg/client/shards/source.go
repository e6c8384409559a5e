package shards

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

// shardResource is defined here because package kinds would link all other kinds.
var shardResource = client.DefineResource[corev1alpha1.Shard, corev1alpha1.ShardList](corev1alpha1.SchemeGroupVersion, "shards")

// minDelay and maxDelay bound the delay after all servers have failed.
const (
	minDelay = 50 * time.Millisecond
	maxDelay = 2 * time.Second
)

// Dial returns the client configuration of a shard. It is called again when the Shard object changes.
type Dial func(shard *corev1alpha1.Shard) (*rest.Config, error)

// Source provides the list of shards. It may be used by several Multis.
type Source struct {
	scopes []client.Scope
	static map[string]*rest.Config
}

// FromRoot follows the Shard objects in the logical cluster root, to which scope must refer.
func FromRoot(scope client.Scope) Source { return Source{scopes: []client.Scope{scope}} }

// FromCache follows the replicas of the Shard objects on a cache server.
func FromCache(factory *client.Factory) Source {
	return FromRoot(factory.Shard(corev1alpha1.RootShard).Cluster(core.RootCluster.Path()))
}

// FromAny follows the Shard objects that one of several shards serves, and fails over to the next one, which may go
// back in time. A client can therefore start while the root shard is unreachable.
func FromAny(factories ...*client.Factory) Source {
	s := Source{}
	for _, factory := range factories {
		s.scopes = append(s.scopes, factory.Admin())
	}
	return s
}

// Static is a fixed table of shards, by name, with their client configurations.
func Static(shards map[string]*rest.Config) Source { return Source{static: maps.Clone(shards)} }

// Access returns a Dial that uses the spec.baseURL of shards and a client configuration.
func Access(config *rest.Config) Dial {
	return func(shard *corev1alpha1.Shard) (*rest.Config, error) {
		address := strings.TrimSuffix(shard.Spec.BaseURL, "/")
		base, err := url.Parse(address)
		if err != nil || base.Host == "" || base.Scheme != "https" {
			return nil, errors.Join(fmt.Errorf("spec.baseURL %q of the Shard must be an https URL", address), err)
		}
		c := rest.CopyConfig(config)
		c.Host = address
		return c, nil
	}
}

func (s Source) dial() Dial {
	if s.static == nil {
		return Access(s.scopes[0].Config())
	}
	return func(shard *corev1alpha1.Shard) (*rest.Config, error) {
		if config := s.static[shard.Name]; config != nil {
			return config, nil
		}
		return nil, errNoConfig
	}
}

var (
	errNoSource = errors.New("the source of the shards contains no server: pass at least one to FromAny")
	errNoConfig = errors.New("the table of shards has no client configuration for the shard")
)

type registry struct {
	source   Source
	informer *client.Informer[*corev1alpha1.Shard]
	changed  func()
}

func (s Source) open(name string, changed func()) (*registry, error) {
	k := &registry{source: s, changed: changed}
	if s.static != nil {
		return k, nil
	}
	if len(s.scopes) == 0 {
		return nil, errNoSource
	}
	k.informer = shardResource.Informer(s.scopes[0], client.InformerOptions[*corev1alpha1.Shard]{Name: "shards of " + name})
	k.informer.AddKeyHandler(func(client.Key) { changed() }, nil)
	return k, nil
}

func (k *registry) complete() bool { return k.informer == nil || k.informer.HasSynced() }

func (k *registry) unreachable() (since time.Time, why error) {
	if k.informer == nil {
		return time.Time{}, nil
	}
	return k.informer.Unreachable()
}

func (k *registry) list() []*corev1alpha1.Shard {
	if k.informer != nil {
		return k.informer.Lister().List(nil)
	}
	var all []*corev1alpha1.Shard
	for _, name := range slices.Sorted(maps.Keys(k.source.static)) {
		all = append(all, &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return all
}

func (k *registry) run(ctx context.Context) {
	if k.informer == nil {
		k.changed()
		<-ctx.Done()
		return
	}
	failures := 0
	for at := 0; ; at = (at + 1) % len(k.source.scopes) {
		if k.follow(ctx) {
			failures = 0
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		if failures%len(k.source.scopes) == 0 {
			select {
			case <-ctx.Done():
			case <-time.After(min(minDelay<<min(failures, 10), maxDelay)):
			}
		}
		// It cannot fail: the scopes are of one kind, and the informer has ended.
		_ = k.informer.MoveTo(k.source.scopes[(at+1)%len(k.source.scopes)])
	}
}

// follow follows the Shard objects of one server until it fails, if there are others. It reports whether it read them.
func (k *registry) follow(ctx context.Context) (read bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-k.informer.Disconnected(): // of the previous server
	default:
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = k.informer.Run(ctx) // it is not running
	}()
	synced := k.informer.Synced()
	for {
		select {
		case <-ended:
			return k.informer.Current()
		case <-synced:
			synced = nil
		case <-k.informer.Disconnected():
			if k.informer.LastError() != nil && len(k.source.scopes) > 1 {
				cancel()
			}
		}
		k.changed()
	}
}
