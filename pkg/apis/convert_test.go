package apis_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/randfill"

	"github.com/shardplane/shardplane/pkg/apis"
)

const rounds = 500

// filler creates objects that could have been stored.
func filler(seed int64) *randfill.Filler {
	word := func(c randfill.Continue) string { return fmt.Sprintf("w%d", c.Intn(1000)) }
	object := func(meta *metav1.ObjectMeta, c randfill.Continue) {
		*meta = metav1.ObjectMeta{Name: word(c), UID: "u", Generation: c.Int63n(9)}
		if c.Bool() {
			meta.Annotations = map[string]string{"own": word(c)}
		}
	}
	return randfill.NewWithSeed(seed).NilChance(.3).NumElements(0, 4).Funcs(
		func(s *string, c randfill.Continue) { *s = word(c) },
		func(t *metav1.TypeMeta, _ randfill.Continue) { *t = metav1.TypeMeta{} },
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1e9), 0) },
		object,
		func(r *apisv1alpha2.ResourceSchema, c randfill.Continue) {
			r.Name, r.Group = word(c), word(c)+".example.org"
			if c.Bool() {
				r.Group = ""
			}
			r.Schema = apis.SchemaName{Prefix: word(c), Resource: schema.GroupResource{Group: r.Group, Resource: r.Name}}.String()
			r.Storage = apisv1alpha2.ResourceSchemaStorage{CRD: &apisv1alpha2.ResourceSchemaStorageCRD{}}
			if c.Bool() {
				r.Storage = apisv1alpha2.ResourceSchemaStorage{Virtual: &apisv1alpha2.ResourceSchemaStorageVirtual{
					Reference: corev1.TypedLocalObjectReference{Kind: word(c), Name: word(c)}, IdentityHash: word(c),
				}}
			}
		},
		func(l *[]string, c randfill.Continue) { // verbs, and versions
			*l = [][]string{{"*"}, {"get", "list"}, {"*", "get"}}[c.Intn(3)]
		},
		func(s *apisv1alpha2.PermissionClaimSelector, c randfill.Continue) {
			switch c.Intn(3) {
			case 0:
				s.MatchAll = true
			case 1:
				s.MatchLabels = map[string]string{word(c): word(c)}
			default:
				s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: word(c), Operator: metav1.LabelSelectorOpExists}}
			}
		},
		func(s *apisv1alpha1.APIExportSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			for i := range s.LatestResourceSchemas {
				s.LatestResourceSchemas[i] = "v1." + word(c) + ".example.org"
			}
		},
		func(p *apisv1alpha1.PermissionClaim, c randfill.Continue) {
			p.GroupResource = apisv1alpha1.GroupResource{Group: word(c), Resource: word(c)}
			p.IdentityHash, p.All = word(c), c.Bool()
			if !p.All {
				p.ResourceSelector = []apisv1alpha1.ResourceSelector{{Name: word(c)}, {Namespace: word(c), Name: word(c)}}
			}
		},
	)
}

// roundTrip converts objects to the other version and back.
func roundTrip[In, Out any](t *testing.T, there func(*In) (*Out, error), back func(*Out) (*In, error), normalize func(*In)) {
	t.Helper()
	for seed := range int64(rounds) {
		in := new(In)
		filler(seed).Fill(in)
		normalize(in)
		out, err := there(in)
		require.NoError(t, err, "%T of seed %d", in, seed)
		again, err := back(out)
		require.NoError(t, err, "%T of seed %d", in, seed)
		if !equality.Semantic.DeepEqual(in, again) {
			require.Equal(t, in, again, "seed %d", seed)
		}
	}
}

func TestRoundTrips(t *testing.T) {
	roundTrip(t, apis.ExportToV1alpha1, apis.ExportToV1alpha2, func(e *apisv1alpha2.APIExport) {
		// The order of keyed items is not significant.
		slices.SortStableFunc(e.Spec.Resources, func(a, b apisv1alpha2.ResourceSchema) int {
			return strings.Compare(fmt.Sprint(a.Storage.CRD == nil), fmt.Sprint(b.Storage.CRD == nil))
		})
	})
	roundTrip(t, apis.ExportToV1alpha2, apis.ExportToV1alpha1, func(*apisv1alpha1.APIExport) {})
	roundTrip(t, apis.BindingToV1alpha1, apis.BindingToV1alpha2, func(*apisv1alpha2.APIBinding) {})
	roundTrip(t, apis.BindingToV1alpha2, apis.BindingToV1alpha1, func(*apisv1alpha1.APIBinding) {})
}

// Fields that one version does not have survive an update by a client of that version.
func TestChangesInTheOtherVersion(t *testing.T) {
	export := &apisv1alpha1.APIExport{Spec: apisv1alpha1.APIExportSpec{
		LatestResourceSchemas: []string{"v1.widgets.core", "v1.gadgets.example.org"},
		PermissionClaims: []apisv1alpha1.PermissionClaim{
			{GroupResource: apisv1alpha1.GroupResource{Resource: "secrets"}, ResourceSelector: []apisv1alpha1.ResourceSelector{{Name: "one"}}},
			{GroupResource: apisv1alpha1.GroupResource{Resource: "configmaps"}, All: true},
		},
	}}
	stored, err := apis.ExportToV1alpha2(export)
	require.NoError(t, err)
	require.Equal(t, []apisv1alpha2.ResourceSchema{
		{Name: "widgets", Schema: "v1.widgets.core", Storage: apisv1alpha2.ResourceSchemaStorage{CRD: &apisv1alpha2.ResourceSchemaStorageCRD{}}},
		{Name: "gadgets", Group: "example.org", Schema: "v1.gadgets.example.org", Storage: apisv1alpha2.ResourceSchemaStorage{CRD: &apisv1alpha2.ResourceSchemaStorageCRD{}}},
	}, stored.Spec.Resources)
	require.Equal(t, []string{"*"}, stored.Spec.PermissionClaims[0].Verbs)

	stored.Spec.PermissionClaims[1].Verbs = []string{"get"}
	stored.Spec.PermissionClaims[1].DefaultSelector = &apisv1alpha2.PermissionClaimSelector{MatchAll: true}
	back, err := apis.ExportToV1alpha1(stored)
	require.NoError(t, err)
	require.Equal(t, export.Spec, back.Spec)
	back.Spec.LatestResourceSchemas = back.Spec.LatestResourceSchemas[1:]
	last, err := apis.ExportToV1alpha2(back)
	require.NoError(t, err)
	require.Len(t, last.Spec.Resources, 1)
	require.Equal(t, stored.Spec.PermissionClaims, last.Spec.PermissionClaims)
	require.Equal(t, stored.Annotations, last.Annotations)
}

// TestKeepSpec: an object with empty fields equals the object that is read after it was stored in the other version.
func TestKeepSpec(t *testing.T) {
	for kind, text := range map[string]string{
		"APIBinding": `{"reference":{"export":{"path":"","name":"e"}},"permissionClaims":[{"group":"","resource":"configmaps","identityHash":"","all":true,"resourceSelector":[],"state":"Accepted"}]}`,
		"APIExport":  `{"latestResourceSchemas":[],"maximalPermissionPolicy":null,"permissionClaims":[{"group":"","resource":"configmaps","identityHash":"","all":true},{"resource":"secrets","all":false,"resourceSelector":[{"name":"x","namespace":""}]}]}`,
	} {
		t.Run(kind, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apisv1alpha1.SchemeGroupVersion.String(), "kind": kind}}
			var content map[string]any
			require.NoError(t, json.Unmarshal([]byte(text), &content))
			u.Object["spec"] = content
			stored, err := apis.Convert(u, apisv1alpha2.SchemeGroupVersion.String())
			require.NoError(t, err)
			read, err := apis.Convert(stored, apisv1alpha1.SchemeGroupVersion.String())
			require.NoError(t, err)
			require.NotEqual(t, read.Object["spec"], u.Object["spec"])
			apis.KeepSpec(u, read)
			require.Equal(t, read.Object["spec"], u.Object["spec"])

			u.Object["spec"] = content
			require.NoError(t, unstructured.SetNestedSlice(u.Object, nil, "spec", "permissionClaims"))
			changed := u.DeepCopy()
			apis.KeepSpec(u, read)
			require.Equal(t, changed, u)
		})
	}
}

// TestV1alpha1Defaults: claims without a selection of objects are valid in v1alpha1, too, and so are resources without
// a storage: in server-side apply, its default comes last.
func TestV1alpha1Defaults(t *testing.T) {
	out, err := apis.ExportToV1alpha1(&apisv1alpha2.APIExport{Spec: apisv1alpha2.APIExportSpec{
		Resources:        []apisv1alpha2.ResourceSchema{{Name: "widgets", Schema: "v1.widgets.core"}},
		PermissionClaims: []apisv1alpha2.PermissionClaim{{GroupResource: apisv1alpha2.GroupResource{Resource: "secrets"}, Verbs: []string{"*"}}},
	}})
	require.NoError(t, err)
	require.True(t, out.Spec.PermissionClaims[0].All)
	require.Equal(t, []string{"v1.widgets.core"}, out.Spec.LatestResourceSchemas)
	require.Empty(t, out.Annotations)
}

func TestConvert(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIExport",
		"metadata": map[string]any{"name": "e", "managedFields": []any{}},
		"spec":     map[string]any{"latestResourceSchemas": []any{"v1.widgets.example.org"}},
	}}
	out, err := apis.Convert(u, "apis.kcp.io/v1alpha2")
	require.NoError(t, err)
	require.Equal(t, "apis.kcp.io/v1alpha2", out.GetAPIVersion())
	require.Equal(t, "APIExport", out.GetKind())
	resources, _, err := unstructured.NestedSlice(out.Object, "spec", "resources")
	require.NoError(t, err)
	require.Len(t, resources, 1)
	same, err := apis.Convert(out, "apis.kcp.io/v1alpha2")
	require.NoError(t, err)
	require.Equal(t, out, same)

	for _, to := range []string{"apis.kcp.io/v1", "", "a/b/c", "example.org/v1alpha1"} {
		_, err := apis.Convert(u, to)
		require.ErrorContains(t, err, "there is no conversion", to)
	}
	_, err = apis.Convert(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIConversion"}}, "apis.kcp.io/v1alpha2")
	require.ErrorContains(t, err, "there is no conversion")
}

// FuzzConvert checks annotations that clients may write: conversion either fails or can be reversed.
func FuzzConvert(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `[]`, `[{}]`, `"a"`, `[{"resource":"secrets","verbs":["get"]}]`, `[{"resource":"secrets","verbs":null,"selector":{"matchAll":true},"state":"Accepted"}]`,
		`[{"name":"widgets","group":"","schema":"x","storage":{"virtual":{}}}]`, `[{"resource":"secrets","all":true}]`, `[{"resource":"secrets","defaultSelector":{"matchLabels":{"a":"b"}}}]`, `[{]`,
	} {
		f.Add(seed)
	}
	binding := apisv1alpha1.BindingReference{Export: &apisv1alpha1.ExportBindingReference{Name: "e"}}
	claim := apisv1alpha1.PermissionClaim{GroupResource: apisv1alpha1.GroupResource{Resource: "secrets"}, All: true}
	f.Fuzz(func(t *testing.T, value string) {
		for _, annotation := range []string{
			apisv1alpha2.ResourceSchemasAnnotation, apisv1alpha2.PermissionClaimsAnnotation, apisv1alpha2.PermissionClaimsV1Alpha1Annotation,
			apisv1alpha2.AcceptablePermissionClaimsAnnotation, apisv1alpha2.StatusPermissionClaimsAnnotation, apisv1alpha2.StatusAppliedClaimsAnnotation,
			apisv1alpha2.StatusPermissionClaimsV1Alpha1Annotation, apisv1alpha2.StatusAppliedClaimsV1Alpha1Annotation,
		} {
			meta := metav1.ObjectMeta{Name: "e", Annotations: map[string]string{annotation: value}}
			for _, in := range []any{
				&apisv1alpha1.APIExport{ObjectMeta: meta, Spec: apisv1alpha1.APIExportSpec{PermissionClaims: []apisv1alpha1.PermissionClaim{claim}}},
				&apisv1alpha1.APIBinding{ObjectMeta: meta, Spec: apisv1alpha1.APIBindingSpec{Reference: binding, PermissionClaims: []apisv1alpha1.AcceptablePermissionClaim{{PermissionClaim: claim, State: "Accepted"}}}},
			} {
				for _, versions := range [][2]string{{"v1alpha1", "v1alpha2"}, {"v1alpha2", "v1alpha1"}} {
					object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(in)
					require.NoError(t, err)
					u := &unstructured.Unstructured{Object: object}
					u.SetAPIVersion("apis.kcp.io/" + versions[0])
					u.SetKind(strings.TrimPrefix(fmt.Sprintf("%T", in), "*v1alpha1."))
					out, err := apis.Convert(u, "apis.kcp.io/"+versions[1])
					if err != nil {
						require.ErrorContains(t, err, "converting API")
						continue
					}
					require.Equal(t, "e", out.GetName())
					_, err = apis.Convert(out, "apis.kcp.io/"+versions[0])
					require.NoError(t, err)
				}
			}
		}
	})
}
