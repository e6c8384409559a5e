package cacheserver

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"

	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// AddKind serves the replicas of a resource with any content, in all shards and logical clusters, until remove is called,
// which ends its watches but deletes no replicas. Shards delete theirs before, when they remove the resource from their
// tables. Resources that every shard replicates are not affected. Both functions may be called at any time.
func (s *Server) AddKind(crd *apiextensionsv1.CustomResourceDefinition) (remove func(), err error) {
	crd = customresource.Opaque(crd)
	apiextensionsserver.Scheme.Default(crd)
	as, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
	if err != nil {
		return nil, fmt.Errorf("serving replicas of %s: %w", crd.Name, err)
	}
	return s.resources.AddSource(kind{&definitions.Definition{Schema: as}}), nil
}

// kind is a source with one constant definition.
type kind struct{ *definitions.Definition }

var _ definitions.Source = kind{}

func (k kind) Resolve(_ context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Resource != k.Schema.Resource || l.Identity != "" {
		return nil, nil //nolint:nilnil // not found
	}
	return k.Definition, nil
}

func (kind) Read(context.Context, definitions.Lookup) (*definitions.Definition, error) {
	return nil, nil //nolint:nilnil // no other server adds definitions
}

func (k kind) List(context.Context, request.Cluster) ([]*definitions.Definition, error) {
	return []*definitions.Definition{k.Definition}, nil
}

func (k kind) Subscribe(func(definitions.Change)) (stop func()) { return func() {} }
