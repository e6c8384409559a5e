package definitions

import (
	"context"
	"net/http"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/controllers/customresourcedefinition"
	"github.com/shardplane/shardplane/pkg/customresource/customresourcetest"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	deadline = customresourcetest.Deadline
	tick     = customresourcetest.Tick
)

var (
	widgets          = customresourcetest.Widgets.GroupResource()
	widgetCRD        = customresourcetest.WidgetCRD
	requireCondition = customresourcetest.RequireCondition
)

func TestMain(m *testing.M) { customresourcetest.Main(m) }

// testServer is an API server of definitions without custom resources.
type testServer struct {
	*Storage
	*customresourcetest.API
}

// startServer starts a server and the controller of its definitions. wrap wraps the storage of definitions.
func startServer(t *testing.T, data customresourcetest.Data, wrap customresourcetest.Wrap) *testServer {
	t.Helper()
	backend := data.Backend(t, false)
	s, err := New(Config{
		Storage: customresourcetest.Wrapped(backend.RESTOptionsGetter, wrap),
		Table:   NewTable(),
		Sources: NewSources(&System{}),
		BuiltInNames: func(context.Context, string) ([]apiextensions.CustomResourceDefinitionNames, error) {
			return nil, nil
		},
	})
	require.NoError(t, err)
	managed := NewManaged(s, func(context.Context, *Schema) (Remaining, error) { return Remaining{}, nil })
	return &testServer{Storage: s, API: customresourcetest.Serve(t, customresourcetest.Parts{
		Wrap:    func(next http.Handler) http.Handler { return next },
		Install: s.Install,
		Run: []func(context.Context) error{customresourcedefinition.New(managed).Run, func(ctx context.Context) error {
			s.Index().Run(ctx)
			return nil
		}},
		HasSynced: s.Index().HasSynced,
		Close:     backend.Close,
	})}
}

// serves reports whether the index serves a resource in a logical cluster.
func (s *testServer) serves(t *testing.T, cluster string, resource schema.GroupResource) bool {
	t.Helper()
	d, err := s.Index().Resolve(t.Context(), Lookup{Cluster: request.Cluster{Name: logicalcluster.Name(cluster)}, Resource: resource, Version: "v1"})
	return err == nil && d != nil
}
