package conformance

import (
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gadgets returns another definition of the same group with the given names.
func gadgets(names string) string {
	return "scope: Namespaced\nnames: " + names + `
versions:
- {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`
}

var namingRules = []rule{
	{"a conflict of short names is reported, and does not affect the API", func(u *user) {
		u.define(gadgets("{plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}"))
		u.define(widgets())
		d := u.redefine("gadgets", func(d *crd) { d.Spec.Names.ShortNames = []string{"widget"} })
		require.Equal(u.t, "False ShortNamesConflict", condition(d, "NamesAccepted"))
		require.Equal(u.t, "True InitialNamesAccepted", condition(d, "Established"))
		_, err := u.resource("v1", "gadgets").List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
	}},
	{"the name of a definition consists of its resource and group, and is immutable", func(u *user) {
		d := u.parse(widgets())
		d.Name = "others." + u.group
		u.rejectDefinition(d, "metadata.name")
		u.define(widgets())
		for _, change := range []func(*crd){
			func(d *crd) { d.Spec.Group = "other.example.com" },
			func(d *crd) { d.Spec.Scope = "Cluster" },
			func(d *crd) { d.Spec.Names.Kind = "Other" },
			func(d *crd) { d.Spec.Names.Plural = "others" },
		} {
			d := u.definition("widgets")
			change(d)
			_, err := u.crds.ApiextensionsV1().CustomResourceDefinitions().Update(u.t.Context(), d, metav1.UpdateOptions{})
			u.requireInvalid(err)
		}
	}},
	{"groups of the Kubernetes community need an approval", func(u *user) {
		d := u.parse(widgets())
		d.Spec.Group = u.group[:len(u.group)-len(".example.com")] + ".k8s.io"
		d.Name = "widgets." + d.Spec.Group
		u.rejectDefinition(d, "api-approved.kubernetes.io")
		d.Annotations = map[string]string{"api-approved.kubernetes.io": "nonsense"}
		u.rejectDefinition(d, "api-approved.kubernetes.io")
		d.Annotations["api-approved.kubernetes.io"] = "https://github.com/kubernetes/kubernetes/pull/1"
		created, err := u.tryDefine(d)
		require.NoError(u.t, err)
		require.Equal(u.t, "True ApprovedAnnotation", condition(created, "KubernetesAPIApprovalPolicyConformant"))

		d.Spec.Names.Plural, d.Spec.Names.Singular, d.Spec.Names.Kind, d.Spec.Names.ListKind = "gadgets", "gadget", "Gadget", "GadgetList"
		d.Name = "gadgets." + d.Spec.Group
		d.Annotations["api-approved.kubernetes.io"] = "unapproved, experimental-only"
		created, err = u.tryDefine(d)
		require.NoError(u.t, err)
		require.Equal(u.t, "False UnapprovedAnnotation", condition(created, "KubernetesAPIApprovalPolicyConformant"))
	}},
	{"new definitions cannot set preserveUnknownFields", func(u *user) {
		d := u.parse(widgets())
		d.Spec.PreserveUnknownFields = true
		u.rejectDefinition(d, "spec.preserveUnknownFields", "cannot set to true")
	}},
}
