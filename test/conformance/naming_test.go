package conformance

import (
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gadgets is another definition of the same group; names are its names.
func gadgets(names string) string {
	return "scope: Namespaced\nnames: " + names + `
versions:
- {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`
}

var namingRules = []rule{
	{"a definition is established, with its names accepted, when the create returns", func(u *user) {
		d := u.define(widgets())
		require.Equal(u.t, "True InitialNamesAccepted", condition(d, "Established"))
		require.Equal(u.t, "True NoConflicts", condition(d, "NamesAccepted"))
		require.Equal(u.t, d.Spec.Names, d.Status.AcceptedNames)
		require.Equal(u.t, []string{"v1"}, d.Status.StoredVersions)
		require.Empty(u.t, condition(d, "NonStructuralSchema"))
	}},
	{"a definition whose names are taken waits until they are free", func(u *user) {
		u.define(widgets())
		d := u.define(gadgets("{plural: gadgets, singular: widget, kind: Widget, listKind: GadgetList, shortNames: [widgets]}"))
		require.Equal(u.t, "False NotAccepted", condition(d, "Established"))
		require.Contains(u.t, condition(d, "NamesAccepted"), "False")
		require.Equal(u.t, "gadgets", d.Status.AcceptedNames.Plural)
		require.Empty(u.t, d.Status.AcceptedNames.Kind)
		_, err := u.resource("v1", "gadgets").List(u.t.Context(), metav1.ListOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
		_, err = u.widgets().List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err, "the first one is not disturbed")

		u.undefine("widgets")
		u.eventually("the names are accepted", func() bool {
			return condition(u.definition("gadgets"), "Established") == "True InitialNamesAccepted"
		})
		_, err = u.resource("v1", "gadgets").List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
	}},
	{"a conflict over short names alone is told and does not take the API away", func(u *user) {
		u.define(gadgets("{plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}"))
		u.define(widgets())
		d := u.redefine("gadgets", func(d *crd) { d.Spec.Names.ShortNames = []string{"widget"} })
		require.Equal(u.t, "False ShortNamesConflict", condition(d, "NamesAccepted"))
		require.Equal(u.t, "True InitialNamesAccepted", condition(d, "Established"))
		_, err := u.resource("v1", "gadgets").List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
	}},
	{"two definitions that want one name at the same time do not both get it", func(u *user) {
		for _, race := range []string{"one", "two", "three"} {
			names := "singular: " + race + ", kind: Kind" + race + ", listKind: List" + race
			drafts := []*crd{u.parse(gadgets("{plural: a" + race + ", " + names + "}")), u.parse(gadgets("{plural: b" + race + ", " + names + "}"))}
			inParallel(u.t, 2, func(i int) error {
				_, err := u.tryDefine(drafts[i])
				return err
			})
			established := 0
			for _, plural := range []string{"a" + race, "b" + race} {
				if condition(u.definition(plural), "Established") == "True InitialNamesAccepted" {
					established++
				}
			}
			require.Equal(u.t, 1, established)
		}
	}},
	{"the name of a definition is that of its resource and group, and does not change", func(u *user) {
		d := u.parse(widgets())
		d.Name = "others." + u.group
		u.refuse(d, "metadata.name")
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
			u.invalid(err)
		}
	}},
	{"groups of the Kubernetes community need an approval", func(u *user) {
		d := u.parse(widgets())
		d.Spec.Group = u.group[:len(u.group)-len(".example.com")] + ".k8s.io"
		d.Name = "widgets." + d.Spec.Group
		u.refuse(d, "api-approved.kubernetes.io")
		d.Annotations = map[string]string{"api-approved.kubernetes.io": "nonsense"}
		u.refuse(d, "api-approved.kubernetes.io")
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
	{"preserveUnknownFields is not for new definitions", func(u *user) {
		d := u.parse(widgets())
		d.Spec.PreserveUnknownFields = true
		u.refuse(d, "spec.preserveUnknownFields", "cannot set to true")
	}},
	{"definitions that are refused, corrected and deleted leave nothing behind", churn},
	{"the status that a client sends with a definition is not its status", func(u *user) {
		d := u.parse(widgets())
		d.Status.StoredVersions = []string{"v9"}
		d.Status.AcceptedNames.Kind = "Other"
		created, err := u.tryDefine(d)
		require.NoError(u.t, err)
		require.Equal(u.t, []string{"v1"}, created.Status.StoredVersions)
		require.Equal(u.t, "Widget", created.Status.AcceptedNames.Kind)
	}},
}

// undefine deletes a definition and waits until it is gone.
func (u *user) undefine(name string) {
	u.t.Helper()
	client := u.crds.ApiextensionsV1().CustomResourceDefinitions()
	require.NoError(u.t, client.Delete(u.t.Context(), name+"."+u.group, metav1.DeleteOptions{}))
	u.eventually("the definition is gone", func() bool {
		_, err := client.Get(u.t.Context(), name+"."+u.group, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
