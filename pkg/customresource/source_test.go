package customresource

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// boundAPIs stands for APIs that logical clusters have from elsewhere: each has
// widgets of the identity that is given for it.
type boundAPIs struct {
	identities map[string]string // by logical cluster
	schemas    map[string]*definitions.Schema
}

func newBoundAPIs(t *testing.T, identities map[string]string) *boundAPIs {
	t.Helper()
	b := &boundAPIs{identities: identities, schemas: map[string]*definitions.Schema{}}
	for _, identity := range identities {
		crd := widgetCRD(nil)
		apiextensionsserver.Scheme.Default(crd)
		s, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names, identity)
		require.NoError(t, err)
		b.schemas[identity] = s
	}
	return b
}

func (b *boundAPIs) Resolve(_ context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Resource.Resource != "widgets" {
		return nil, nil
	}
	identity := l.Identity
	if !l.Cluster.Wildcard {
		identity = b.identities[l.Cluster.Name.String()]
	}
	if s := b.schemas[identity]; s != nil {
		return &definitions.Definition{Schema: s}, nil
	}
	return nil, nil
}

func (b *boundAPIs) List(_ context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	if s := b.schemas[b.identities[cluster.Name.String()]]; s != nil {
		return []*definitions.Definition{{Schema: s}}, nil
	}
	return nil, nil
}

func (b *boundAPIs) Subscribe(func(definitions.Change)) {}

// TestIdentities: a wildcard by identity sees the objects of that identity with
// full content, and no others.
func TestIdentities(t *testing.T) {
	bound := newBoundAPIs(t, map[string]string{"one": "aaaa", "two": "aaaa", "three": "bbbb"})
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}})
	for _, cluster := range []string{"one", "two", "three"} {
		_, err := s.Dynamic(t, cluster).Resource(widgets).Namespace("default").Create(t.Context(), widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for identity, want := range map[string]int{"aaaa": 2, "bbbb": 1} {
		resource := widgets
		resource.Resource += ":" + identity
		list, err := s.Dynamic(t, "*").Resource(resource).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, want)
		require.Contains(t, list.Items[0].Object, "spec")
	}
	_, err := s.Dynamic(t, "*").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err))

	created := s.CreateCRD(t, "one", widgetCRD(nil))
	requireCondition(t, created, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
}
