// Package cachedresources contains the objects of a shard that cached resources replicate, and serves them as
//
//	/clusters/*/apis/<group>/<version>/<resource>:<identity of the cached resource>
//
// Caches use the same name. One list contains the objects of all logical clusters with cached resources
// that have the identity; a claims.Set contains the selection in each of them.
package cachedresources

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// Index is a definitions.Source for replicated objects. Its methods may be called concurrently.
type Index struct {
	// bound returns the definition for wildcard requests with the identity of an export.
	bound func(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error)

	mu         sync.RWMutex
	identities map[identified]*published
	of         map[apis.Publisher]identified
	bytes      map[apis.Publisher]int64
	// owners are the cached resources that select the objects, if several replicate the same resource.
	owners map[owned]apis.Publisher

	listeners definitions.Listeners[definitions.Change]
}

type identified struct {
	resource schema.GroupResource
	identity string
}

// owned are the objects of a resource in a logical cluster.
type owned struct {
	cluster  logicalcluster.Name
	resource schema.GroupVersionResource
}

// form is common to all cached resources with one identity.
type form struct{ version, kind, api string }

// published are the objects of a resource that are replicated with one identity.
type published struct {
	form

	definition *definitions.Definition
	set        *claims.Set
	publishers map[apis.Publisher]struct{}
}

// NewCachedResourceIndex returns an empty index.
func NewCachedResourceIndex(bound func(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error)) *Index {
	return &Index{bound: bound, identities: map[identified]*published{}, of: map[apis.Publisher]identified{}, bytes: map[apis.Publisher]int64{}, owners: map[owned]apis.Publisher{}}
}

// Publish replaces the published objects of a cached resource. It returns an error if another cached resource
// with the same identity has a different version, kind or API. It returns a CachedAlreadyError if another
// cached resource in the logical cluster replicates the objects.
func (x *Index) Publish(publisher apis.Publisher, p *apis.Publication) error {
	changed, err := x.publish(publisher, identified{p.Resource.GroupResource(), p.Identity}, p)
	if changed {
		x.listeners.Notify(definitions.Change{})
	}
	return err
}

// publish reports whether an existing definition was replaced.
func (x *Index) publish(publisher apis.Publisher, w identified, p *apis.Publication) (changed bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	objects := owned{publisher.Cluster, p.Resource}
	if owner, ok := x.owners[objects]; ok && owner != publisher && p.Selector != nil {
		return false, &apis.CachedAlreadyError{Resource: p.Resource, By: owner}
	}
	if before, ok := x.of[publisher]; ok && before != w {
		x.forgetLocked(publisher)
	}
	of, as := x.identities[w], form{p.Resource.Version, p.Kind, p.API}
	if of != nil && len(of.publishers) == 1 && of.form != as {
		if _, own := of.publishers[publisher]; own {
			of.set.Deny(publisher.Cluster, p.Revision)
			of, changed = nil, true // the only publisher may change it
		}
	}
	switch {
	case of == nil:
		// Served as stored, independent of the schemas of logical clusters.
		served, err := customresource.OpaqueSchema(p.Resource, p.Kind)
		if err != nil {
			return changed, err
		}
		of = &published{
			form: as, definition: &definitions.Definition{Schema: served, Identity: p.API}, publishers: map[apis.Publisher]struct{}{},
			set: claims.NewSet(nil, w.resource, p.API, p.Revision),
		}
		x.identities[w] = of
	case of.form != as:
		return changed, fmt.Errorf("another cached resource with this identity replicates %s %s of another API or kind, or in another version: use a separate identity secret for each", w.resource, of.version)
	}
	of.publishers[publisher] = struct{}{}
	x.of[publisher], x.bytes[publisher] = w, p.Bytes
	if p.Selector != nil {
		x.owners[objects] = publisher
	}
	switch {
	case p.Selector == nil:
		x.denyLocked(publisher, w, of, p.Revision)
	case p.Names != nil:
		of.set.AllowNames(publisher.Cluster, p.Names, p.Revision)
	default:
		of.set.Allow(publisher.Cluster, p.Selector, p.Revision)
	}
	return changed, nil
}

// Withdraw unpublishes the objects of a cached resource. It remains a publisher until Forget.
func (x *Index) Withdraw(publisher apis.Publisher, revision uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.of[publisher]
	if of := x.identities[w]; of != nil {
		x.denyLocked(publisher, w, of, revision)
	}
}

// denyLocked removes the objects of a logical cluster from an identity, unless another publisher has them.
func (x *Index) denyLocked(publisher apis.Publisher, w identified, of *published, revision uint64) {
	owner, ok := x.owners[owned{publisher.Cluster, w.resource.WithVersion(of.version)}]
	if !ok || owner == publisher || x.of[owner] != w {
		of.set.Deny(publisher.Cluster, revision)
	}
}

// Forget removes a cached resource that has no replicas any more.
func (x *Index) Forget(publisher apis.Publisher) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forgetLocked(publisher)
}

func (x *Index) forgetLocked(publisher apis.Publisher) {
	w, ok := x.of[publisher]
	if !ok {
		return
	}
	of := x.identities[w]
	x.denyLocked(publisher, w, of, of.set.Version())
	if objects := (owned{publisher.Cluster, w.resource.WithVersion(of.version)}); x.owners[objects] == publisher {
		delete(x.owners, objects)
	}
	delete(x.of, publisher)
	delete(x.bytes, publisher)
	if delete(of.publishers, publisher); len(of.publishers) == 0 {
		delete(x.identities, w)
	}
}

// Reset removes all cached resources, because the next publisher starts without them.
func (x *Index) Reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for publisher := range x.of {
		x.forgetLocked(publisher)
	}
}

// Bytes returns the size of the objects of a cached resource, as counted by its publisher.
func (x *Index) Bytes(publisher apis.Publisher) int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.bytes[publisher]
}

// Published returns the resource that a cached resource publishes, as in Publication.Replicated, and the
// number of its publishers, or false.
func (x *Index) Published(publisher apis.Publisher) (replicated schema.GroupVersionResource, by int, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	w, ok := x.of[publisher]
	if !ok {
		return schema.GroupVersionResource{}, 0, false
	}
	of := x.identities[w]
	return apis.Identified(w.resource.WithVersion(of.version), w.identity), len(of.publishers), true
}

// Selects reports whether an object is replicated as a resource returned by Published.
func (x *Index) Selects(replicated schema.GroupResource, obj metav1.Object) bool {
	resource, identity, _ := strings.Cut(replicated.Resource, ":")
	x.mu.RLock()
	of := x.identities[identified{schema.GroupResource{Group: replicated.Group, Resource: resource}, identity}]
	x.mu.RUnlock()
	return of != nil && of.set.Selection(logicalcluster.From(obj)).MatchesObject(obj.GetName(), labels.Set(obj.GetLabels()))
}

var _ definitions.Source = (*Index)(nil)

// Resolve implements definitions.Source. Objects of an export are served and converted with its definition.
func (x *Index) Resolve(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Identity == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	x.mu.RLock()
	of := x.identities[identified{l.Resource, l.Identity}]
	x.mu.RUnlock()
	if of == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	served := *of.definition
	if of.api != "" {
		bound, err := x.bound(ctx, definitions.Lookup{Cluster: request.Cluster{Wildcard: true}, Resource: l.Resource, Version: l.Version, Identity: of.api})
		if err != nil {
			return nil, err
		}
		if bound != nil {
			served = *bound
		}
	}
	served.Only = of.set
	return &served, nil
}

// Read implements definitions.Source.
func (*Index) Read(context.Context, definitions.Lookup) (*definitions.Definition, error) {
	return nil, nil //nolint:nilnil // no other server adds to it
}

// List implements definitions.Source. Discovery contains the resources without an identity.
func (*Index) List(context.Context, request.Cluster) ([]*definitions.Definition, error) {
	return nil, nil
}

// Subscribe implements definitions.Source. Changes of the set are sent to watches by claims.Set.
func (x *Index) Subscribe(f func(definitions.Change)) (stop func()) { return x.listeners.Add(f) }
