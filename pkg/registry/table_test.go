package registry_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

var rewrite = flag.Bool("rewrite", false, "write the golden tables instead of comparing with them")

const tableType = "application/json;as=Table;g=meta.k8s.io;v=v1"

// TestTables compares the tables of all resources with golden files. Run it with -rewrite after an intended change.
func TestTables(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	createOneOfEach(t, client)
	for name, path := range map[string]string{
		"namespaces":      "/api/v1/namespaces",
		"configmaps":      "/api/v1/namespaces/ns/configmaps",
		"secrets":         "/api/v1/namespaces/ns/secrets",
		"serviceaccounts": "/api/v1/namespaces/ns/serviceaccounts",
		"events":          "/api/v1/namespaces/ns/events",
		"leases":          "/apis/coordination.k8s.io/v1/namespaces/ns/leases",

		"roles":               "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles",
		"rolebindings":        "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/rolebindings",
		"clusterroles":        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"clusterrolebindings": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	} {
		t.Run(name, func(t *testing.T) {
			table := getTable(t, client, path)
			require.NotEmpty(t, table.ResourceVersion)
			golden(t, name, table)
		})
	}
	t.Run("events of both groups", func(t *testing.T) {
		a, b := getTable(t, client, "/api/v1/namespaces/ns/events"), getTable(t, client, "/apis/events.k8s.io/v1/namespaces/ns/events")
		require.Equal(t, a.ColumnDefinitions, b.ColumnDefinitions)
		require.Len(t, b.Rows, len(a.Rows))
		for i := range a.Rows {
			require.Equal(t, a.Rows[i].Cells, b.Rows[i].Cells)
		}
	})
	t.Run("one object", func(t *testing.T) {
		table := getTable(t, client, "/api/v1/namespaces/ns/configmaps/c")
		require.Len(t, table.Rows, 1)
		require.Equal(t, "c", table.Rows[0].Cells[0])
		require.NotEmpty(t, table.ResourceVersion)
	})
	t.Run("status of a namespace", func(t *testing.T) {
		require.Equal(t, "Active", getTable(t, client, "/api/v1/namespaces/ns/status").Rows[0].Cells[1])
	})
	t.Run("objects in rows", func(t *testing.T) {
		for include, want := range map[string]string{"": "PartialObjectMetadata", "Metadata": "PartialObjectMetadata", "Object": "ConfigMap"} {
			table := getTable(t, client, "/api/v1/namespaces/ns/configmaps?includeObject="+include)
			var kind metav1.TypeMeta
			require.NoError(t, json.Unmarshal(table.Rows[0].Object.Raw, &kind))
			require.Equal(t, want, kind.Kind)
		}
		require.Nil(t, getTable(t, client, "/api/v1/namespaces/ns/configmaps?includeObject=None").Rows[0].Object.Raw)
	})
	t.Run("in pages", func(t *testing.T) {
		table := getTable(t, client, "/api/v1/namespaces/ns/configmaps?limit=1")
		require.Len(t, table.Rows, 1)
		require.NotEmpty(t, table.Continue)
		require.Equal(t, int64(1), *table.RemainingItemCount)
	})
	t.Run("empty", func(t *testing.T) {
		table := getTable(t, client, "/api/v1/namespaces/none/configmaps")
		require.NotNil(t, table.Rows)
		require.Empty(t, table.Rows)
		require.Len(t, table.ColumnDefinitions, 3)
	})
	t.Run("of a deletion", func(t *testing.T) {
		body, err := client.CoreV1().RESTClient().Delete().AbsPath("/api/v1/namespaces/ns/configmaps/c").SetHeader("Accept", tableType).DoRaw(t.Context())
		require.NoError(t, err)
		require.Contains(t, string(body), "Success")
	})
}

func getTable(t *testing.T, client kubernetes.Interface, path string) *metav1.Table {
	t.Helper()
	where, err := url.Parse(path)
	require.NoError(t, err)
	get := client.CoreV1().RESTClient().Get().AbsPath(where.Path).SetHeader("Accept", tableType)
	for name, values := range where.Query() {
		get.Param(name, values[0])
	}
	body, err := get.DoRaw(t.Context())
	require.NoError(t, err)
	table := &metav1.Table{}
	require.NoError(t, json.Unmarshal(body, table))
	require.Equal(t, "Table", table.Kind)
	return table
}

// golden compares headers and cells. Ages of new objects vary, so only their format is checked.
func golden(t *testing.T, name string, table *metav1.Table) {
	t.Helper()
	type shown struct {
		Columns []metav1.TableColumnDefinition
		Rows    [][]any
	}
	out := shown{Columns: table.ColumnDefinitions}
	for _, row := range table.Rows {
		for i, column := range table.ColumnDefinitions {
			if column.Name == "Age" {
				require.Regexp(t, `^[0-9]+m?s$`, row.Cells[i])
				row.Cells[i] = "<age>"
			}
			if column.Name == "Created At" {
				require.Regexp(t, `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$`, row.Cells[i])
				row.Cells[i] = "<created at>"
			}
		}
		out.Rows = append(out.Rows, row.Cells)
	}
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(out))
	path := filepath.Join("testdata", "table-"+name+".json")
	if *rewrite {
		require.NoError(t, os.WriteFile(path, got.Bytes(), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// createOneOfEach creates objects in the namespace ns with typical values of the columns.
func createOneOfEach(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx, options := t.Context(), metav1.CreateOptions{}
	do := func(_ any, err error) {
		t.Helper()
		require.NoError(t, err)
	}
	do(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: named("ns")}, options))
	do(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: named("deleted")}, options))
	require.NoError(t, client.CoreV1().Namespaces().Delete(ctx, "deleted", metav1.DeleteOptions{}))
	do(client.CoreV1().ConfigMaps("ns").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: named("c"), Data: map[string]string{"a": "", "b": ""}, BinaryData: map[string][]byte{"c": {1}},
	}, options))
	do(client.CoreV1().ConfigMaps("ns").Create(ctx, &corev1.ConfigMap{ObjectMeta: named("empty")}, options))
	do(client.CoreV1().Secrets("ns").Create(ctx, &corev1.Secret{ObjectMeta: named("s"), StringData: map[string]string{"a": "b"}}, options))
	do(client.CoreV1().ServiceAccounts("ns").Create(ctx, &corev1.ServiceAccount{ObjectMeta: named("sa"), Secrets: []corev1.ObjectReference{{Name: "s"}}}, options))
	do(client.CoordinationV1().Leases("ns").Create(ctx, &coordinationv1.Lease{ObjectMeta: named("free")}, options))
	do(client.CoordinationV1().Leases("ns").Create(ctx, &coordinationv1.Lease{
		ObjectMeta: named("held"), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("me")},
	}, options))

	subjects := []rbacv1.Subject{
		{Kind: "User", Name: "u"}, {Kind: "User", Name: "v"}, {Kind: "Group", Name: "g"}, {Kind: "ServiceAccount", Namespace: "ns", Name: "sa"},
	}
	do(client.RbacV1().Roles("ns").Create(ctx, &rbacv1.Role{ObjectMeta: named("r")}, options))
	do(client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: named("cr")}, options))
	do(client.RbacV1().RoleBindings("ns").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: named("rb"), RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"}, Subjects: subjects,
	}, options))
	do(client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: named("crb"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "cr"}, Subjects: subjects,
	}, options))

	// Ages of hours do not change while the test runs.
	ago := func(hours int) time.Time { return time.Now().Add(-time.Duration(hours)*time.Hour - time.Minute) }
	old := oldEvent("old", "ns")
	old.FirstTimestamp, old.LastTimestamp = metav1.NewTime(ago(20)), metav1.NewTime(ago(10))
	old.Message = "  it happened\n"
	do(client.CoreV1().Events("ns").Create(ctx, old, options))
	bare := &corev1.Event{ObjectMeta: named("bare"), InvolvedObject: corev1.ObjectReference{Kind: "Thing", Namespace: "ns"}}
	do(client.CoreV1().Events("ns").Create(ctx, bare, options))
	single := newEvent("single", "ns")
	single.EventTime = metav1.NewMicroTime(ago(20))
	do(client.EventsV1().Events("ns").Create(ctx, single, options))
	series := newEvent("series", "ns")
	series.EventTime = metav1.NewMicroTime(ago(20))
	series.Series = &eventsv1.EventSeries{Count: 5, LastObservedTime: metav1.NewMicroTime(ago(10))}
	do(client.EventsV1().Events("ns").Create(ctx, series, options))
}
