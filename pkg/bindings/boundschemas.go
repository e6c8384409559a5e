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

// Consumers see the schemas that they have bound as APIResourceSchemas, although the shard stores copies of them:
//
//	claims.Set                the copies that a consumer has bound
//	definitions.Projection    their names and content as APIResourceSchemas

// SchemasResource is the resource as which copies are served.
var SchemasResource = apisv1alpha1.Resource("apiresourceschemas")

// shownIdentity redirects requests for SchemasResource in tenancy.AdminCluster to the copies. Clients
// cannot specify it.
const shownIdentity = "-bound"

// boundSets contains the sets of consumers with recent requests.
type boundSets struct {
	table   *table
	schemas *schemas
	history *history
	stored  schema.GroupResource // of the copies
	// shown is the definition with which the copies are served, or nil if they are not.
	shown *definitions.Definition

	mu   sync.Mutex
	sets map[logicalcluster.Name]*boundSet
}

// boundSet contains the copies that a consumer has bound.
type boundSet struct {
	*claims.Set
	requests int
	used     time.Time // when the last request ended
}

// followLocked updates the set of a consumer. all are its bindings now, and latest is the revision of the change.
func (s *boundSets) followLocked(consumer logicalcluster.Name, all []*record, latest uint64) {
	if set := s.sets[consumer]; set != nil {
		set.AllowNames(tenancy.AdminCluster, schemasOf(all), latest)
	}
}

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

// WithBoundSchemas returns a context in which requests for SchemasResource return only the APIResourceSchemas that a
// consumer on this shard has bound. The context must only be used for reading. The set is kept up to date until done
// is called. The error is an API status.
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

// project defines how the copies are served, given the definition of APIResourceSchemas.
func (s *boundSets) project(as *apiextensionsv1.CustomResourceDefinition) error {
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

// showCopy returns the original of a copy, with the resourceVersion of the copy.
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
