package bindings

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Consumers see the schemas that they have bound as APIResourceSchemas, although the shard stores copies of them:
//
//	claims.Set                the copies that a consumer has bound
//	definitions.Projection    their names and content as APIResourceSchemas

// SchemasResource is the resource as which copies are served.
var SchemasResource = apisv1alpha1.Resource("apiresourceschemas")

// shownIdentity redirects requests for SchemasResource in tenancy.AdminCluster to the copies. Clients must not use it.
const shownIdentity = "-bound"

// boundSchemas serves the copies that a consumer has bound.
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
	ctx = request.WithIdentity(request.WithClusterName(ctx, tenancy.AdminCluster), SchemasResource, shownIdentity)
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
