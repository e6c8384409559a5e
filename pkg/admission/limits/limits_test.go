package limits

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

type state struct {
	usage, types                        usage.Usage // types are of WorkspaceTypes
	unknown, full, filling, historyFull bool
	clusters                            map[logicalcluster.Name]*corev1alpha1.LogicalCluster
}

func (s state) Of(logicalcluster.Name) (usage.Usage, bool) { return s.usage, !s.unknown }
func (s state) Full() bool                                 { return s.full }
func (s state) HistoryFull() bool                          { return s.historyFull }
func (s state) Filling() bool                              { return s.filling || s.full }
func (s state) OfKind(_ logicalcluster.Name, resource schema.GroupResource) (usage.Usage, bool) {
	return s.types, !s.unknown && (resource == types || resource == roles)
}
func (s state) of(cluster logicalcluster.Name) *corev1alpha1.LogicalCluster {
	return s.clusters[cluster]
}

var (
	tenant     = &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
	master     = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	elsewhere  = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}, Extra: map[string][]string{request.ExtraScopes: {request.ScopeClusterPrefix + "elsewhere"}}}
	theAPI     = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	configMaps = corev1.Resource("configmaps")
	events     = corev1.Resource("events")
	types      = tenancyv1alpha1.Resource("workspacetypes")
	configs    = tenancyv1alpha1.Resource("workspaceauthenticationconfigurations")
	roles      = rbacv1.Resource("clusterroles")
	clusters   = corev1alpha1.Resource("logicalclusters")
)

func ready(annotations map[string]string) *corev1alpha1.LogicalCluster {
	return &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: annotations},
		Status:     corev1alpha1.LogicalClusterStatus{Phase: corev1alpha1.LogicalClusterPhaseReady},
	}
}

func configMapOf(bytes int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"text": strings.Repeat("x", bytes)}}
}

func with(field string, value any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{field: value}}
}

func listOf(name string, n int) map[string]any { return map[string]any{name: make([]any, n)} }

func custom(bytes int) *unstructured.Unstructured          { return with("spec", strings.Repeat("x", bytes)) }
func naming(name string, n int) *unstructured.Unstructured { return with("spec", listOf(name, n)) }
func extending(n int) *unstructured.Unstructured           { return nesting("extend", "with", n) }
func managedCustom(n int) *unstructured.Unstructured {
	return with("metadata", listOf("managedFields", n))
}
func ownedCustom(n int) *unstructured.Unstructured {
	return with("metadata", listOf("ownerReferences", n))
}

func nesting(field, name string, n int) *unstructured.Unstructured {
	return with("spec", map[string]any{field: listOf(name, n)})
}

func aggregating(selectors, labels, values int) *rbacv1.ClusterRole {
	var selector metav1.LabelSelector
	for n := range labels {
		metav1.AddLabelToSelector(&selector, fmt.Sprint(n), "x")
	}
	if values > 0 {
		selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: make([]string, values)}}
	}
	return &rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: slices.Repeat([]metav1.LabelSelector{selector}, selectors)}}
}

// escaped returns a ClusterRole with n names that are three times as long in JSON.
func escaped(n int) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, ResourceNames: slices.Repeat([]string{"\x01"}, n)}}}
}

// valued returns an object with n values, some of them empty, and values of the server.
func valued(n, servers int) *unstructured.Unstructured {
	many := func(n int) []any {
		list := make([]any, n)
		for i := range list {
			list[i] = map[string]any{"verbs": []any{"a"}}
		}
		return list
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"kind":     "WorkspaceType",
		"metadata": map[string]any{"labels": map[string]any{"a": "b"}, "managedFields": many(servers)},
		"spec":     map[string]any{"initializerPermissions": many(n - 4), "limitAllowedChildren": map[string]any{"types": []any{}}, "defaultAPIBindings": nil},
		"status":   map[string]any{"virtualWorkspaces": many(servers)},
	}}
}

func managed(n int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: make([]metav1.ManagedFieldsEntry, n)}}
}

func withSecrets(n int) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{Secrets: make([]corev1.ObjectReference, n)}
}

func mapped(n int) *corev1.ConfigMap { return &corev1.ConfigMap{Data: filled(n, "")} }

func filled[V any](n int, value V) map[string]V {
	all := make(map[string]V, n)
	for i := range n {
		all[strconv.Itoa(i)] = value
	}
	return all
}

func owned(n int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{OwnerReferences: slices.Repeat([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "u"}}, n)}}
}

func TestLimits(t *testing.T) {
	options := Options{MaxObjects: 10, MaxBytes: 1024, MaxReplicated: 5, MaxReplicatedBytes: 500}
	starting := ready(nil)
	starting.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	ending := ready(nil)
	ending.Status.Phase, ending.DeletionTimestamp = "Deleting", &metav1.Time{}
	below, objects, bytes := usage.Usage{Objects: 9, Bytes: 1023}, usage.Usage{Objects: 10}, usage.Usage{Bytes: 1024}
	for name, tc := range map[string]struct {
		used, types   usage.Usage
		unknown, full bool
		cluster       logicalcluster.Name // one, if empty
		lc            *corev1alpha1.LogicalCluster
		subtree       subtrees.Amount // used, of 100 objects and 10,000 bytes
		as            user.Info       // a tenant, if nil
		resource      schema.GroupResource
		subresource   string
		obj, old      runtime.Object
		want          string
		code          int
	}{
		"below both limits":                                          {used: below, resource: configMaps, obj: configMapOf(5000)},
		"object limit":                                               {used: objects, resource: configMaps, obj: configMapOf(1), want: "the logical cluster one has 10 objects, at most 10 allowed: delete"},
		"update at the object limit":                                 {used: objects, resource: configMaps, obj: configMapOf(9), old: configMapOf(1)},
		"Event at the object limit":                                  {used: objects, resource: events, obj: &corev1.Event{}},
		"review at the object limit":                                 {used: objects, resource: authorizationv1.Resource("subjectaccessreviews"), obj: &authorizationv1.SubjectAccessReview{}},
		"token at the object limit":                                  {used: objects, resource: corev1.Resource("serviceaccounts"), subresource: "token", obj: &corev1.ServiceAccount{}},
		"system at the object limit":                                 {used: objects, resource: configMaps, as: theAPI, obj: configMapOf(1)},
		"administrator at the object limit":                          {used: objects, resource: configMaps, as: master, obj: configMapOf(1), want: "raise the annotation core.kcp.io/max-total-objects"},
		"byte limit":                                                 {used: bytes, resource: configMaps, obj: configMapOf(1), want: "the logical cluster one has 1024 bytes, at most 1024 allowed: delete"},
		"Event at the byte limit":                                    {used: bytes, resource: events, obj: &corev1.Event{}, want: "has 1024 bytes"},
		"growing update at the byte limit":                           {used: bytes, resource: configMaps, obj: configMapOf(9), old: configMapOf(8), want: "has 1024 bytes"},
		"growing status at the byte limit":                           {used: bytes, resource: configMaps, subresource: "status", obj: custom(9), old: custom(8), want: "has 1024 bytes"},
		"update of the same size at the byte limit":                  {used: bytes, resource: configMaps, obj: configMapOf(8), old: configMapOf(8)},
		"shrinking update at the byte limit":                         {used: bytes, resource: configMaps, obj: custom(7), old: custom(8)},
		"usage not counted yet":                                      {used: objects, unknown: true, resource: configMaps, obj: configMapOf(1)},
		"object limit before Ready":                                  {used: objects, lc: starting, resource: configMaps, obj: configMapOf(1)},
		"byte limit before Ready":                                    {used: bytes, lc: starting, resource: configMaps, obj: configMapOf(1), want: "has 1024 bytes"},
		"system before Ready":                                        {used: bytes, lc: starting, resource: configMaps, as: theAPI, obj: configMapOf(1)},
		"object limit during deletion":                               {used: objects, lc: ending, resource: configMaps, obj: configMapOf(1), want: "has 10 objects"},
		"root by default":                                            {used: objects, cluster: "root", resource: configMaps, obj: configMapOf(1)},
		"system:admin by default":                                    {used: bytes, cluster: "system:admin", resource: configMaps, obj: configMapOf(1)},
		"root by annotation":                                         {used: objects, cluster: "root", lc: ready(map[string]string{tenancy.MaxObjectsAnnotation: "3"}), resource: configMaps, obj: configMapOf(1), want: "at most 3 allowed"},
		"more objects by annotation":                                 {used: objects, lc: ready(map[string]string{tenancy.MaxObjectsAnnotation: "11"}), resource: configMaps, obj: configMapOf(1)},
		"no object limit by annotation":                              {used: objects, lc: ready(map[string]string{tenancy.MaxObjectsAnnotation: "0"}), resource: configMaps, obj: configMapOf(1)},
		"no object limit by a negative annotation":                   {used: objects, lc: ready(map[string]string{tenancy.MaxObjectsAnnotation: "-1"}), resource: configMaps, obj: configMapOf(1)},
		"fewer bytes by annotation":                                  {used: usage.Usage{Bytes: 600}, lc: ready(map[string]string{tenancy.MaxBytesAnnotation: "600"}), resource: configMaps, obj: configMapOf(1), want: "at most 600 allowed"},
		"no byte limit by annotation":                                {used: bytes, lc: ready(map[string]string{tenancy.MaxBytesAnnotation: "0"}), resource: configMaps, obj: configMapOf(1)},
		"subtree below its limits":                                   {subtree: subtrees.Amount{Objects: 99, Bytes: 9_999}, resource: configMaps, obj: configMapOf(1)},
		"object limit of a subtree":                                  {subtree: subtrees.Amount{Objects: 100}, resource: configMaps, obj: configMapOf(1), want: "the workspace root:org and all workspaces below it have 100 objects, at most 100 allowed: delete objects, or have an administrator raise the annotation core.shardplane.io/max-subtree-objects"},
		"update at the object limit of a subtree":                    {subtree: subtrees.Amount{Objects: 100}, resource: configMaps, obj: configMapOf(9), old: configMapOf(1)},
		"Event at the object limit of a subtree":                     {subtree: subtrees.Amount{Objects: 100}, resource: events, obj: &corev1.Event{}},
		"byte limit of a subtree":                                    {subtree: subtrees.Amount{Bytes: 10_000}, resource: configMaps, obj: configMapOf(1), want: "the workspace root:org and all workspaces below it have 10000 bytes, at most 10000 allowed"},
		"growing update at the byte limit of a subtree":              {subtree: subtrees.Amount{Bytes: 10_000}, resource: configMaps, obj: configMapOf(2), old: configMapOf(1), want: "have 10000 bytes"},
		"shrinking update at the byte limit of a subtree":            {subtree: subtrees.Amount{Bytes: 10_000}, resource: configMaps, obj: configMapOf(1), old: configMapOf(2)},
		"object limit of a subtree, not counted yet":                 {unknown: true, subtree: subtrees.Amount{Objects: 100}, resource: configMaps, obj: configMapOf(1), want: "have 100 objects"},
		"object limit of a subtree before Ready":                     {lc: starting, subtree: subtrees.Amount{Objects: 100}, resource: configMaps, obj: configMapOf(1), want: "have 100 objects"},
		"types below the limits":                                     {types: usage.Usage{Objects: 4, Bytes: 499}, resource: types, obj: custom(1)},
		"limit of types":                                             {types: usage.Usage{Objects: 5}, resource: types, obj: custom(1), want: "the logical cluster one has 5 workspacetypes.tenancy.kcp.io, at most 5 allowed, because they are replicated to other shards: delete objects, or have an administrator raise --max-replicated-objects"},
		"another resource at the limit of types":                     {types: usage.Usage{Objects: 5, Bytes: 500}, resource: configMaps, obj: configMapOf(1)},
		"growing type at the limit of types":                         {types: usage.Usage{Objects: 5}, resource: types, obj: custom(2), old: custom(1)},
		"byte limit of types":                                        {types: usage.Usage{Bytes: 500}, resource: types, obj: custom(1), want: "has 500 bytes of workspacetypes.tenancy.kcp.io, at most 500 allowed"},
		"growing type at the byte limit of types":                    {types: usage.Usage{Bytes: 500}, resource: types, obj: custom(2), old: custom(1), want: "has 500 bytes"},
		"shrinking type at the byte limit of types":                  {types: usage.Usage{Bytes: 500}, resource: types, obj: custom(1), old: custom(2)},
		"type of root at the limit of types":                         {types: usage.Usage{Objects: 5}, cluster: "root", resource: types, obj: custom(1)},
		"type of the system at the limit of types":                   {types: usage.Usage{Objects: 5}, as: theAPI, resource: types, obj: custom(1)},
		"limit of types before Ready":                                {types: usage.Usage{Objects: 5}, lc: starting, resource: types, obj: custom(1), want: "at most 5 allowed"},
		"types not counted yet":                                      {types: usage.Usage{Objects: 5}, unknown: true, resource: types, obj: custom(1)},
		"role too large for a replica":                               {resource: roles, obj: escaped(200_000), want: "bytes, at most 1310720 allowed", code: http.StatusRequestEntityTooLarge},
		"growing role above the limit":                               {resource: roles, obj: escaped(200_001), old: escaped(200_000), want: "at most 1310720 allowed", code: http.StatusRequestEntityTooLarge},
		"shrinking role above the limit":                             {resource: roles, obj: escaped(200_000), old: escaped(200_001)},
		"large role of root":                                         {cluster: "root", resource: roles, obj: escaped(200_000)},
		"large role of the system":                                   {resource: roles, as: theAPI, obj: escaped(200_000)},
		"role below the limit":                                       {resource: roles, obj: escaped(140_000)},
		"status too large for a replica":                             {resource: types, subresource: "status", obj: custom(5 << 18), old: custom(1), want: "at most 1310720 allowed", code: http.StatusRequestEntityTooLarge},
		"create, etcd nearly full":                                   {full: true, resource: configMaps, obj: configMapOf(1), want: "the shard is nearly full", code: http.StatusInsufficientStorage},
		"growing update, etcd nearly full":                           {full: true, resource: configMaps, obj: configMapOf(2), old: configMapOf(1), want: "the shard is nearly full", code: http.StatusInsufficientStorage},
		"shrinking update, etcd nearly full":                         {full: true, resource: configMaps, obj: configMapOf(1), old: configMapOf(2)},
		"administrator of another logical cluster, etcd nearly full": {full: true, as: elsewhere, resource: configMaps, obj: configMapOf(1), want: "the shard is nearly full", code: http.StatusInsufficientStorage},
		"administrator, etcd nearly full":                            {full: true, as: master, resource: configMaps, obj: configMapOf(1)},
		"annotation that is not a number":                            {resource: clusters, as: theAPI, obj: ready(map[string]string{tenancy.MaxObjectsAnnotation: "many"}), want: `is "many", but must be an integer`},
		"annotation that is a large quantity":                        {resource: clusters, as: theAPI, obj: ready(map[string]string{tenancy.MaxBytesAnnotation: "1e1000"}), want: `is "1e1000", but must be a quantity`},
		"annotation that is not a quantity":                          {resource: clusters, as: theAPI, obj: ready(map[string]string{tenancy.MaxBytesAnnotation: "much"}), want: `is "much", but must be a quantity`},
		"type too large":                                             {resource: types, as: theAPI, obj: custom(65 << 10), want: "at most 65536 allowed", code: http.StatusRequestEntityTooLarge},
		"shrinking type above the limit":                             {resource: types, obj: custom(65 << 10), old: custom(66 << 10)},
		"type that extends too many":                                 {resource: types, obj: extending(33), want: "spec.extend.with has 33 entries, at most 32 allowed"},
		"unchanged type that extends too many":                       {resource: types, obj: extending(33), old: extending(33)},
		"type with too many issuers":                                 {resource: types, obj: naming("authenticationConfigurations", 11), want: "spec.authenticationConfigurations has 11 entries, at most 10 allowed"},
		"issuers too large":                                          {resource: configs, as: theAPI, obj: custom(65 << 10), want: "at most 65536 allowed", code: http.StatusRequestEntityTooLarge},
		"too many issuers":                                           {resource: configs, obj: naming("jwt", 11), want: "spec.jwt has 11 entries, at most 10 allowed"},
		"issuers at the limit":                                       {resource: configs, obj: naming("jwt", 10)},
		"too many allowed children":                                  {resource: types, as: theAPI, obj: nesting("limitAllowedChildren", "types", 65), want: "spec.limitAllowedChildren.types has 65 entries, at most 64 allowed"},
		"more allowed children above the limit":                      {resource: types, obj: nesting("limitAllowedChildren", "types", 67), old: nesting("limitAllowedChildren", "types", 66), want: "has 67 entries, at most 64 allowed"},
		"unchanged allowed children above the limit":                 {resource: types, obj: nesting("limitAllowedChildren", "types", 66), old: nesting("limitAllowedChildren", "types", 66)},
		"too many allowed parents":                                   {resource: types, obj: nesting("limitAllowedParents", "types", 65), want: "spec.limitAllowedParents.types has 65 entries, at most 64 allowed"},
		"allowed parents at the limit":                               {resource: types, obj: nesting("limitAllowedParents", "types", 64)},
		"too many values":                                            {resource: types, as: theAPI, obj: valued(2049, 0), want: "it has 2049 values in labels, annotations and spec, at most 2048 allowed"},
		"more values above the limit":                                {resource: types, obj: valued(2051, 0), old: valued(2050, 0), want: "it has 2051 values in labels, annotations and spec, at most 2048 allowed"},
		"unchanged values above the limit":                           {resource: types, obj: valued(2050, 1), old: valued(2050, 0)},
		"values at the limit":                                        {resource: types, obj: valued(2048, 100)},
		"too many selectors":                                         {resource: roles, as: theAPI, obj: aggregating(65, 1, 0), want: "aggregationRule.clusterRoleSelectors has 65 entries, at most 64 allowed: add a common label"},
		"more selectors above the limit":                             {resource: roles, obj: aggregating(67, 1, 0), old: aggregating(66, 1, 0), want: "has 67 entries, at most 64 allowed"},
		"unchanged selectors above the limit":                        {resource: roles, obj: aggregating(66, 1, 0), old: aggregating(66, 1, 0)},
		"fewer selectors above the limit":                            {resource: roles, obj: aggregating(65, 1, 0), old: aggregating(66, 1, 0)},
		"selectors at the limit":                                     {resource: roles, obj: aggregating(64, 1, 1)},
		"too many labels of selectors":                               {resource: roles, obj: aggregating(3, 43, 0), want: "have 129 labels and values of expressions, at most 128 allowed: add a common label"},
		"too many values of selectors":                               {resource: roles, obj: aggregating(3, 0, 43), want: "have 129 labels and values of expressions, at most 128 allowed"},
		"fewer selectors, too many requirements":                     {resource: roles, obj: aggregating(43, 2, 1), old: aggregating(64, 2, 0), want: "have 129 labels"},
		"unchanged values of selectors above the limit":              {resource: roles, obj: aggregating(3, 0, 43), old: aggregating(3, 0, 43)},
		"type that extends the maximum":                              {resource: types, obj: extending(32)},
		"subtree annotation that is not a number":                    {resource: clusters, as: theAPI, obj: ready(map[string]string{tenancy.MaxSubtreeObjectsAnnotation: "1.5"}), want: `max-subtree-objects is "1.5", but must be an integer`},
		"subtree annotation that is not a quantity":                  {resource: clusters, as: theAPI, obj: ready(map[string]string{tenancy.MaxSubtreeBytesAnnotation: ""}), want: `max-subtree-bytes is "", but must be a quantity`},
		"too many managers":                                          {resource: configMaps, as: theAPI, obj: managed(129), want: "metadata.managedFields has 129 entries, at most 128 allowed"},
		"more managers above the limit":                              {resource: configMaps, obj: managed(131), old: managed(130), want: "at most 128 allowed"},
		"unchanged managers of a custom resource":                    {resource: types, obj: managedCustom(129), old: managedCustom(129)},
		"too many managers of a custom resource":                     {resource: types, obj: managedCustom(129), old: managedCustom(128), want: "at most 128 allowed"},
		"too many secrets":                                           {resource: configMaps, as: theAPI, obj: withSecrets(1001), want: "has 1001 entries in lists that are merged by key, at most 1000 allowed", code: http.StatusRequestEntityTooLarge},
		"secrets at the limit":                                       {resource: configMaps, obj: withSecrets(1000)},
		"unchanged secrets above the limit":                          {resource: configMaps, obj: withSecrets(1100), old: withSecrets(1100)},
		"map too large":                                              {resource: configMaps, as: theAPI, obj: mapped(50_001), old: mapped(50_000), want: "has a map with 50001 entries, at most 50000 allowed", code: http.StatusRequestEntityTooLarge},
		"unchanged large map":                                        {resource: configMaps, obj: mapped(50_002), old: mapped(50_002)},
		"too many labels":                                            {resource: configMaps, obj: with("metadata", map[string]any{"labels": filled(50_001, any(""))}), want: "has a map with 50001 entries", code: http.StatusRequestEntityTooLarge},
		"too many owners":                                            {resource: configMaps, as: theAPI, obj: owned(1001), want: "metadata.ownerReferences has 1001 entries, at most 1000 allowed"},
		"owners at the limit":                                        {resource: configMaps, obj: owned(1000)},
		"unchanged owners above the limit":                           {resource: configMaps, obj: owned(1100), old: owned(1100)},
		"more owners above the limit":                                {resource: types, obj: ownedCustom(1101), old: ownedCustom(1100), want: "at most 1000 allowed"},
		"valid annotations":                                          {resource: clusters, as: theAPI, obj: ready(map[string]string{tenancy.MaxObjectsAnnotation: "-1", tenancy.MaxBytesAnnotation: "2Gi"})},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, lc := cmp.Or(tc.cluster, "one"), cmp.Or(tc.lc, ready(nil))
			metav1.SetMetaDataAnnotation(&lc.ObjectMeta, core.LogicalClusterPathAnnotationKey, "root:org:one")
			s := state{usage: tc.used, types: tc.types, unknown: tc.unknown, full: tc.full, clusters: map[logicalcluster.Name]*corev1alpha1.LogicalCluster{cluster: lc}}
			within := func(path string) []*subtrees.Subtree {
				require.Equal(t, "root:org:one", path)
				return []*subtrees.Subtree{{Limit: subtrees.Limit{Path: "root:org", Most: subtrees.Amount{Objects: 100, Bytes: 10_000}}, Used: tc.subtree}}
			}
			p := NewLimits(Config{Options: options, Usage: s, Subtrees: within, LogicalCluster: s.of, Unstored: []schema.GroupResource{authorizationv1.Resource("subjectaccessreviews")}})
			a := writeBy(tc.resource, tc.subresource, tc.obj, tc.old, tc.as)
			ctx := request.WithClusterName(t.Context(), cluster)
			err := p.Admit(ctx, a, nil)
			if err == nil {
				err = p.Validate(ctx, a, nil)
			}
			requireOutcome(t, err, tc.want, cmp.Or(tc.code, http.StatusForbidden))
		})
	}
}

// writeBy returns a create, or an update, by a tenant if as is nil.
func writeBy(resource schema.GroupResource, sub string, obj, old runtime.Object, as user.Info) admission.Attributes {
	operation := admission.Create
	if old != nil {
		operation = admission.Update
	}
	return admission.NewAttributesRecord(obj, old, schema.GroupVersionKind{}, "default", "one",
		resource.WithVersion("v1"), sub, operation, nil, false, cmp.Or[user.Info](as, tenant))
}

func requireOutcome(t *testing.T, err error, text string, code int) {
	t.Helper()
	if text == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, text)
	var status apierrors.APIStatus
	require.ErrorAs(t, err, &status)
	require.EqualValues(t, code, status.Status().Code)
}

func TestValidate(t *testing.T) {
	defaults := NewOptions()
	require.Empty(t, defaults.Validate())
	wrong := Options{MaxObjects: -1, MaxBytes: -1, MaxReplicated: -1, MaxReplicatedBytes: -1}
	require.Len(t, wrong.Validate(), 4)

	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	defaults.AddFlags(fs)
	require.NoError(t, fs.Parse([]string{"--" + objectsFlag + "=7", "--" + bytesFlag + "=2Gi", "--" + replicatedFlag + "=8", "--" + replicatedBytesFlag + "=1Mi"}))
	require.Equal(t, Options{MaxObjects: 7, MaxBytes: 2 << 30, MaxReplicated: 8, MaxReplicatedBytes: 1 << 20}, defaults)
	require.ErrorContains(t, fs.Parse([]string{"--" + bytesFlag + "=much"}), "write a quantity such as 512Mi")
}
