package conformance

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// churn has definitions come and go, several at a time: each is refused first,
// and tried in a dry run, and gets its names each time that it is created.
func churn(u *user) {
	const definitions, rounds = 3, 5
	inParallel(u.t, definitions, func(i int) error {
		for round := range rounds {
			// Each time with a schema that the server has never seen.
			spec := u.parse(widgets(fmt.Sprintf("%s%d: {type: string}", u.name, round)))
			d := newCRD(u.group, fmt.Sprintf("churned%d", i), fmt.Sprintf("Churned%d", i), spec.Spec.Versions...)
			if err := u.comeAndGo(d); err != nil {
				return fmt.Errorf("round %d of %s: %w", round, d.Name, err)
			}
		}
		return nil
	})
	// All names are free.
	for i := range definitions {
		u.define(gadgets(fmt.Sprintf("{plural: gadgets%d, singular: churned%d, kind: Churned%d, listKind: Churned%dList}", i, i, i, i)))
	}
}

// comeAndGo refuses, creates, uses and deletes a definition.
func (u *user) comeAndGo(d *crd) error {
	client := u.crds.ApiextensionsV1().CustomResourceDefinitions()
	mistyped := d.DeepCopy()
	mistyped.Name = "mistyped." + d.Name
	mistyped.Spec.Names.Categories = []string{strings.Repeat("c", 1<<17)}
	if _, err := u.tryDefine(mistyped); !apierrors.IsInvalid(err) {
		return fmt.Errorf("the mistyped definition was answered with %w", err)
	}
	if _, err := client.Create(u.t.Context(), d.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return fmt.Errorf("the dry run: %w", err)
	}
	created, err := u.tryDefine(d)
	if err != nil {
		return err
	}
	if got := condition(created, "Established"); got != "True InitialNamesAccepted" {
		return fmt.Errorf("the condition Established is %s, names are %+v", got, created.Status.AcceptedNames)
	}
	if _, err := u.resource("v1", d.Spec.Names.Plural).List(u.t.Context(), metav1.ListOptions{}); err != nil {
		return err
	}
	if err := client.Delete(u.t.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(u.t.Context(), tick, testTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, d.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
