package bindings

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Accepted permission claims are passed to storage in two forms, and are not written to any object:
//
//	claims.Set             for each export, resource and verb that was requested through a virtual
//	                       workspace: the selected objects of each logical cluster
//	Index.ClaimLabels      for each logical cluster: the claim labels of its objects

const setIdleFor = 10 * time.Minute

type setKey struct {
	identified
	// stored is the identity in the storage keys. For system resources it may become known later.
	stored string
	// verb is part of the key because bindings to an export may accept a resource with different verbs. For
	// example, watches must end when the verb watch is no longer accepted.
	verb string
}

type trackedSet struct {
	*claims.Set
	used time.Time
}

// claimed contains the sets that recent requests have used, and keeps them up to date.
type claimed struct {
	config *Config
	table  *table

	// labels contains the claimLabels of logical clusters. It is a sync.Map because storage reads it under
	// locks that changes of sets also acquire.
	labels sync.Map

	mu      sync.Mutex
	history history
	sets    map[client.Key]map[setKey]*trackedSet
	bound   map[logicalcluster.Name]*trackedSet // the copies of schemas that a consumer has bound
}

// followLocked applies a change of a binding to the sets and labels. all are the bindings of the logical cluster
// now, and latest is the revision of the change.
func (c *claimed) followLocked(cluster logicalcluster.Name, before, after *record, all []*record, latest uint64) {
	if unchanged(before, after) {
		return
	}
	c.updateLabels(cluster, all)
	exports := map[client.Key]bool{}
	for _, r := range []*record{before, after} {
		if r == nil {
			continue
		}
		if export, known := r.exportKey(); known {
			exports[export] = true
		}
	}
	for export := range exports {
		for key, set := range c.sets[export] {
			applySelection(set.Set, cluster, selectionIn(all, export, key.identified, key.verb), latest)
		}
	}
	if set := c.bound[cluster]; set != nil {
		set.AllowNames(tenancy.AdminCluster, schemasOf(all), latest)
	}
}

func applySelection(set *claims.Set, cluster logicalcluster.Name, s claims.Selection, latest uint64) {
	if s.Held() {
		set.Allow(cluster, s.Selector(), latest)
	} else {
		set.Deny(cluster, latest)
	}
}

func (c *claimed) updateLabels(cluster logicalcluster.Name, all []*record) {
	labelled := slices.DeleteFunc(slices.Clone(all), func(r *record) bool { return len(r.labels) == 0 })
	switch len(labelled) {
	case 0:
		c.labels.Delete(cluster)
	case 1:
		c.labels.Store(cluster, labelled[0].labels) // shared by equal bindings
	default:
		shown := claimLabels{}
		for _, r := range labelled {
			for w, more := range r.labels {
				shown[w] = append(shown[w], more...)
			}
		}
		c.labels.Store(cluster, shown)
	}
}

// ClaimLabels implements storage.ClaimLabels.
func (c *claimed) ClaimLabels(cluster logicalcluster.Name, resource schema.GroupResource, identity string) []storage.ClaimLabel {
	v, ok := c.labels.Load(cluster)
	if !ok {
		return nil
	}
	shown, _ := v.(claimLabels)
	if identity == "" {
		// Claims on system resources specify this identity. Without it, no claim has effect.
		identity, _ = c.config.SystemIdentity(resource)
	}
	return shown[identified{resource, identity}]
}

// setOf returns the set of objects that all bindings, which must be loaded, let an export access.
func (c *claimed) setOf(export client.Key, key setKey) *claims.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	if set := c.sets[export][key]; set != nil {
		set.used = time.Now()
		return set.Set
	}
	set := c.newSetLocked(key.resource, key.stored, c.table.recordsFor(export), func(set *claims.Set, cluster logicalcluster.Name, all []*record, latest uint64) {
		applySelection(set, cluster, selectionIn(all, export, key.identified, key.verb), latest)
	})
	if c.sets[export] == nil {
		c.sets[export] = map[setKey]*trackedSet{}
	}
	c.sets[export][key] = set
	return set.Set
}

// boundBy returns the set of the copies of schemas that a consumer has bound.
func (c *claimed) boundBy(consumer logicalcluster.Name, copies schema.GroupResource) *claims.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	if set := c.bound[consumer]; set != nil {
		set.used = time.Now()
		return set.Set
	}
	now := map[logicalcluster.Name][]*record{consumer: c.table.records(consumer)}
	set := c.newSetLocked(copies, "", now, func(set *claims.Set, cluster logicalcluster.Name, all []*record, latest uint64) {
		if cluster == consumer {
			set.AllowNames(tenancy.AdminCluster, schemasOf(all), latest)
		}
	})
	c.bound[consumer] = set
	return set.Set
}

// newSetLocked returns a set with the recent changes as its history. now contains the current bindings, and is changed.
func (c *claimed) newSetLocked(
	resource schema.GroupResource, stored string, now map[logicalcluster.Name][]*record,
	apply func(set *claims.Set, cluster logicalcluster.Name, all []*record, latest uint64),
) *trackedSet {
	latest, recent := c.history.since(c.table.informer.ResourceVersion())
	set := claims.NewSet(&c.history.source, resource, stored, latest)
	for i := range slices.Backward(recent) {
		now[recent[i].cluster] = recent[i].before // in the end, before the first change
	}
	for cluster, all := range now {
		apply(set, cluster, all, latest)
	}
	set.Begin()
	for i := range recent {
		apply(set, recent[i].cluster, recent[i].now, latest)
	}
	return &trackedSet{Set: set, used: time.Now()}
}

func (c *claimed) expireSets(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for export, sets := range c.sets {
		maps.DeleteFunc(sets, func(_ setKey, set *trackedSet) bool { return set.expire(now) })
		if len(sets) == 0 {
			delete(c.sets, export)
		}
	}
	maps.DeleteFunc(c.bound, func(_ logicalcluster.Name, set *trackedSet) bool { return set.expire(now) })
}

// expire prolongs the use of a set that watches follow, and reports whether the set has expired.
func (s *trackedSet) expire(now time.Time) (expired bool) {
	if s.Followed() {
		s.used = now
	}
	return now.Sub(s.used) > setIdleFor
}

// Consumers see the schemas that they have bound as APIResourceSchemas, although the shard stores copies of them:
//
//	claims.Set                the copies that a consumer has bound
//	definitions.Projection    their names and content as APIResourceSchemas

// SchemasResource is the resource as which copies are served.
var SchemasResource = apisv1alpha1.Resource("apiresourceschemas")

// copiesIdentity redirects requests for SchemasResource in tenancy.AdminCluster to the copies. Clients must not use it.
const copiesIdentity = "-bound"

type boundSchemas struct {
	sets    *claimed
	schemas *schemas
	stored  schema.GroupResource    // of the copies
	shown   *definitions.Definition // of the copies as SchemasResource, or nil if they are not served
}

// WithBoundSchemas returns a context in which requests for SchemasResource return only the APIResourceSchemas that a
// consumer on this shard has bound. It must only be used for reading. The error is an API status.
func (s *boundSchemas) WithBoundSchemas(ctx context.Context, consumer logicalcluster.Name) (context.Context, error) {
	if err := s.sets.table.waitSynced(ctx); err != nil {
		return nil, err
	}
	set := s.sets.boundBy(consumer, s.stored)
	ctx = request.WithIdentity(request.WithClusterName(ctx, tenancy.AdminCluster), SchemasResource, copiesIdentity)
	return context.WithValue(request.WithRestriction(ctx, set), consumerKey{}, consumer), nil
}

type consumerKey struct{}

func (s *boundSchemas) nameOfCopy(ctx context.Context, shown string) (string, error) {
	consumer, _ := ctx.Value(consumerKey{}).(logicalcluster.Name)
	for _, r := range s.sets.table.records(consumer) {
		for _, b := range r.byResource {
			p, err := s.schemas.get(ctx, b.uid)
			if err != nil {
				return "", err
			}
			if p.name == shown {
				return string(b.uid), nil
			}
		}
	}
	return "", nil
}

// project defines how the copies are served, given the definition of APIResourceSchemas.
func (s *boundSchemas) project(as *apiextensionsv1.CustomResourceDefinition) error {
	projected, err := definitions.NewProjectedSchema(as, &definitions.Projection{
		Stored: s.stored, Show: restoreOriginal, ShownName: originalOf, StoredName: s.nameOfCopy,
	})
	if err != nil {
		return err
	}
	s.shown = &definitions.Definition{Schema: projected, Owner: "the server"}
	return nil
}

func originalOf(stored *unstructured.Unstructured) string {
	name, _ := stored.Object["original"].(string)
	return name
}

// restoreOriginal returns the original of a copy, with the resourceVersion of the copy.
func restoreOriginal(stored *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	shown := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{
			"name": originalOf(stored), "uid": stored.GetName(), "resourceVersion": stored.GetResourceVersion(),
			"generation": int64(1), "creationTimestamp": stored.Object["created"],
			"annotations": map[string]any{logicalcluster.AnnotationKey: stored.Object["provider"]},
		},
		"spec": stored.Object["spec"],
	}}
	shown.SetGroupVersionKind(apisv1alpha1.SchemeGroupVersion.WithKind("APIResourceSchema"))
	return shown, nil
}
