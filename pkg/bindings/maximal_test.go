package bindings

import (
	"context"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// withoutProviders returns an index that has only the exports of other shards that were loaded before its start. They have the identity
// h. Three consumers have bound e, f, and one that was already deleted.
func withoutProviders(t *testing.T, known map[string]*apisv1alpha2.APIExport) *Index {
	t.Helper()
	w := newShard(t)
	unknown := fmt.Errorf("%w: the cache server is unreachable", client.ErrIncomplete)
	w.config.Export = func(key client.Key) (*apisv1alpha2.APIExport, error) {
		if e := known[key.Name]; e != nil {
			return e, nil
		}
		return nil, unknown
	}
	w.config.ExportsByIdentity = func(string) (all []*apisv1alpha2.APIExport, err error) {
		for _, e := range known {
			all = append(all, e)
		}
		return all, unknown
	}
	w.run()
	w.schema("one", widgets, "size", 1)
	for name, identity := range map[string]string{"e": "h", "f": "h", "removed": "h", "other": "i"} {
		b := bindingOf("has-"+name, "b", boundTo(widgets, "one", identity))
		b.Spec.Reference.Export.Name = name
		if name == "removed" {
			conditions.MarkFalse(b, apisv1alpha2.APIExportValid, apisv1alpha2.APIExportNotFoundReason, "Error", "it does not exist")
		}
		w.put(b)
	}
	return w.Index
}

func permissive() *apisv1alpha2.APIExport { return &apisv1alpha2.APIExport{} }

func bounded() *apisv1alpha2.APIExport {
	export := permissive()
	export.Spec.MaximalPermissionPolicy = &apisv1alpha2.MaximalPermissionPolicy{Local: &apisv1alpha2.LocalAPIExportPolicy{}}
	return export
}

// denying permits nothing.
var denying = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
})

var reading = authorizer.AttributesRecord{
	User: &user.DefaultInfo{Name: "alice"}, Verb: "get", APIGroup: widgets.Group, Resource: widgets.Resource, ResourceRequest: true,
}

// TestPolicyOfAnUnknownExport: before all exports are loaded, resources of an unknown export have no policy only if the
// binding reports that the export does not exist.
func TestPolicyOfAnUnknownExport(t *testing.T) {
	permits := withoutProviders(t, map[string]*apisv1alpha2.APIExport{"e": permissive()}).MaximalPermission(denying)
	for cluster, want := range map[logicalcluster.Name]authorizer.Decision{
		"has-e": authorizer.DecisionAllow, "has-f": authorizer.DecisionNoOpinion, "has-removed": authorizer.DecisionAllow,
	} {
		decision, _, err := permits(request.WithClusterName(t.Context(), cluster), reading)
		require.Equal(t, want, decision, cluster)
		if want == authorizer.DecisionAllow {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, client.ErrIncomplete)
		}
	}
}

// TestClaimsOfUnknownExports: before all exports are loaded, an identity permits claimed objects only if all its exports with
// bindings are loaded.
func TestClaimsOfUnknownExports(t *testing.T) {
	for name, tc := range map[string]struct {
		known map[string]*apisv1alpha2.APIExport
		want  authorizer.Decision
		err   error
	}{
		"none":                    {nil, authorizer.DecisionNoOpinion, client.ErrIncomplete},
		"one of two":              {map[string]*apisv1alpha2.APIExport{"e": permissive()}, authorizer.DecisionNoOpinion, client.ErrIncomplete},
		"both":                    {map[string]*apisv1alpha2.APIExport{"e": permissive(), "f": permissive()}, authorizer.DecisionAllow, nil},
		"both, one with a policy": {map[string]*apisv1alpha2.APIExport{"e": permissive(), "f": bounded()}, authorizer.DecisionNoOpinion, nil},
	} {
		t.Run(name, func(t *testing.T) {
			decision, _, err := withoutProviders(t, tc.known).PermitsClaim(t.Context(), denying, "claimant", "h", reading)
			require.Equal(t, tc.want, decision)
			require.ErrorIs(t, err, tc.err)
		})
	}
}
