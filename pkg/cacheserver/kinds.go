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

// AddKind has the replicas of one more kind served, whatever their content, in all
// shards and logical clusters, until remove is called: then its watches end. That
// deletes no replica; they are there again if the kind is added again. Shards take
// theirs away before, when the kind leaves their tables. A kind that every shard
// replicates stays as it is. Both may be called at any time.
func (s *Server) AddKind(crd *apiextensionsv1.CustomResourceDefinition) (remove func(), err error) {
	crd = customresource.Opaque(crd)
	apiextensionsserver.Scheme.Default(crd)
	as, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
	if err != nil {
		return nil, fmt.Errorf("serving replicas of %s: %w", crd.Name, err)
	}
	return s.resources.AddSource(kind{&definitions.Definition{Schema: as}}), nil
}

// kind is a source of one definition, which never changes.
type kind struct{ *definitions.Definition }

var _ definitions.Source = kind{}

// Resolve implements definitions.Source.
func (k kind) Resolve(_ context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Resource != k.Schema.Resource || l.Identity != "" {
		return nil, nil //nolint:nilnil // there is none
	}
	return k.Definition, nil
}

// Read implements definitions.Source.
func (kind) Read(context.Context, definitions.Lookup) (*definitions.Definition, error) {
	return nil, nil //nolint:nilnil // nobody else adds to it
}

// List implements definitions.Source.
func (k kind) List(context.Context, request.Cluster) ([]*definitions.Definition, error) {
	return []*definitions.Definition{k.Definition}, nil
}

// Subscribe implements definitions.Source.
func (k kind) Subscribe(func(definitions.Change)) (stop func()) { return func() {} }
