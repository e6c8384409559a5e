package bindings

import (
	"context"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// What a consumer sees of the schemas that it has bound are the shard's copies, shown as
// the APIResourceSchemas that they are copies of:
//
//	claims.Set                which copies, for each consumer that somebody has asked for
//	definitions.Projection    under which names, and what of them

// SchemasResource are what copies are shown as.
var SchemasResource = apisv1alpha1.Resource("apiresourceschemas")

// shownIdentity has requests for SchemasResource in tenancy.AdminCluster see the copies,
// and not the objects that are stored there. No client can ask for it.
const shownIdentity = "-bound"

// boundSets are the sets of the consumers that somebody has asked for.
type boundSets struct {
	table   *table
	schemas *schemas
	history *history
	// stored is the resource of the copies.
	stored schema.GroupResource
	// shown is the definition under which they are shown to those who have bound them. Nil if they are not.
	shown *definitions.Definition

	mu   sync.Mutex
	sets map[logicalcluster.Name]*boundSet
}

// boundSet is which copies a consumer has bound.
type boundSet struct {
	*claims.Set
	requests int
	used     time.Time // when the last request ended
}

// followLocked brings a change to the set of a consumer. all are its bindings now, and latest is the revision of the change.
func (s *boundSets) followLocked(consumer logicalcluster.Name, all []*record, latest uint64) {
	if set := s.sets[consumer]; set != nil {
		set.AllowNames(tenancy.AdminCluster, schemasOf(all), latest)
	}
}

// expireBound drops the sets that no request uses, nor has used lately.
func (s *boundSets) expireBound(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for consumer, set := range s.sets {
		if set.requests == 0 && now.Sub(set.used) > setIdleFor {
			set.Deny(tenancy.AdminCluster, s.history.latest)
			delete(s.sets, consumer)
		}
	}
}

// WithBoundSchemas returns a context in which requests for SchemasResource see the
// APIResourceSchemas that a consumer of the shard has bound, and no others: they are to be
// read only. The set is kept up to date until done is called. The error is an API status.
func (s *boundSets) WithBoundSchemas(ctx context.Context, consumer logicalcluster.Name) (seeing context.Context, done func(), err error) {
	if err := s.table.waitSynced(ctx); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.sets[consumer]
	if set == nil {
		set = &boundSet{Set: s.boundSetLocked(consumer)}
		s.sets[consumer] = set
	}
	set.requests++
	ctx = request.WithIdentity(request.WithClusterName(ctx, tenancy.AdminCluster), SchemasResource, shownIdentity)
	ctx = request.WithRestriction(ctx, set.Set)
	return context.WithValue(ctx, consumerKey{}, consumer), sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		set.requests--
		set.used = time.Now()
	}), nil
}

// boundSetLocked makes the set of a consumer.
func (s *boundSets) boundSetLocked(consumer logicalcluster.Name) *claims.Set {
	latest, recent := s.history.since(s.table.informer.ResourceVersion())
	set := claims.NewSet(&s.history.source, s.stored, "", latest)
	begins, changed := firstOf(recent)[consumer]
	if !changed {
		begins = s.table.records(consumer)
	}
	set.AllowNames(tenancy.AdminCluster, schemasOf(begins), latest)
	set.Begin()
	for i := range recent {
		if recent[i].cluster == consumer {
			set.AllowNames(tenancy.AdminCluster, schemasOf(recent[i].now), latest)
		}
	}
	return set
}

type consumerKey struct{}

// nameOfCopy returns the name of the copy that a request of WithBoundSchemas sees under a
// name, or "".
func (s *boundSets) nameOfCopy(ctx context.Context, shown string) (string, error) {
	consumer, _ := ctx.Value(consumerKey{}).(logicalcluster.Name)
	for _, r := range s.table.records(consumer) {
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

// show has copies shown, by the definition of APIResourceSchemas.
func (s *boundSets) show(as *apiextensionsv1.CustomResourceDefinition) error {
	projected, err := definitions.NewProjectedSchema(as, &definitions.Projection{
		Stored: s.stored, Show: showCopy, ShownName: originalOf, StoredName: s.nameOfCopy,
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

// showCopy returns the original of a copy, with the version of the copy.
func showCopy(stored *unstructured.Unstructured) (*unstructured.Unstructured, error) {
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

// showsCopies reports whether a look-up is for what WithBoundSchemas shows.
func (s *boundSets) showsCopies(l definitions.Lookup) bool {
	return s.shown != nil && l.Cluster.Name == tenancy.AdminCluster && l.Identity == shownIdentity && l.Resource == SchemasResource
}
