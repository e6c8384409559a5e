// Package certificates describes the resources of certificates.k8s.io: certificate signing requests. The server stores,
// approves and denies them. Controllers of the signer's owner sign them.
package certificates

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

// Config configures the group.
type Config struct {
	// Authorizer is used for the verbs approve and sign on signers. Without it, these are not required.
	Authorizer authorizer.UnconditionalAuthorizer
}

// Group returns certificates.k8s.io/v1.
func Group(c Config) resource.Group {
	described := *requests
	if c.Authorizer != nil {
		described.Subresources = slices.Clone(requests.Subresources)
		described.Subresources[0].Admit = c.admitSigning
		described.Subresources[1].Admit = func(ctx context.Context, request, old *csr) error {
			return c.admit(ctx, "approve", request, old)
		}
	}
	return resource.Group{
		GroupVersion: certificatesv1.SchemeGroupVersion,
		Resources:    []resource.Definition{&described},
	}
}

var requests = &resource.Resource[*csr]{
	Name:       "certificatesigningrequests",
	Kind:       "CertificateSigningRequest",
	ShortNames: []string{"csr"},
	NewList:    func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
	Strategy: resource.Strategy[*csr]{
		PrepareForCreate: prepare,
		PrepareForUpdate: func(_ context.Context, request, old *csr) {
			request.Spec, request.Status = old.Spec, old.Status
		},
		Validate: func(_ context.Context, request *csr) field.ErrorList { return validateNew(request) },
		ValidateUpdate: func(_ context.Context, request, old *csr) field.ErrorList {
			return validate.ObjectMetaUpdate(request, old)
		},
		UnconditionalUpdate: true,
		ResetFields:         [][]string{{"spec"}, {"status"}},
	},
	Selectable: func(request *csr) fields.Set {
		return fields.Set{"spec.signerName": request.Spec.SignerName}
	},
	Subresources: []resource.Subresource[*csr]{
		{Name: "status", Strategy: resource.Strategy[*csr]{
			PrepareForUpdate: prepareStatus,
			ValidateUpdate:   validateStatus,
			ResetFields:      [][]string{{"spec"}},
		}},
		{Name: "approval", Strategy: resource.Strategy[*csr]{
			PrepareForUpdate: prepareApproval,
			ValidateUpdate:   validateApproval,
			ResetFields:      [][]string{{"spec"}, {"status", "certificate"}},
		}},
	},
	Columns: []resource.Column[*csr]{
		resource.NameColumn[*csr](),
		resource.AgeColumn[*csr](),
		{
			Name:        "SignerName",
			Description: certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"],
			Cell:        func(request *csr) any { return request.Spec.SignerName },
		},
		{
			Name:        "Requestor",
			Description: certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["request"],
			Cell:        func(request *csr) any { return request.Spec.Username },
		},
		{
			Name:        "RequestedDuration",
			Description: certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"],
			Cell:        requestedDuration,
		},
		{
			Name:        "Condition",
			Description: certificatesv1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"],
			Cell:        func(request *csr) any { return summary(request) },
		},
	},
}

func requestedDuration(request *csr) any {
	if request.Spec.ExpirationSeconds == nil {
		return "<none>"
	}
	return duration.HumanDuration(time.Duration(*request.Spec.ExpirationSeconds) * time.Second)
}

// summary returns kubectl's summary of the conditions.
func summary(request *csr) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, condition := range request.Status.Conditions {
		has[condition.Type] = true
	}
	var text string
	switch {
	case has[certificatesv1.CertificateDenied]:
		text = "Denied"
	case has[certificatesv1.CertificateApproved]:
		text = "Approved"
	default:
		text = "Pending"
	}
	if has[certificatesv1.CertificateFailed] {
		text += ",Failed"
	}
	if len(request.Status.Certificate) > 0 {
		text += ",Issued"
	}
	return text
}

// prepare sets the requesting user, and ignores the values of the client.
func prepare(ctx context.Context, request *csr) {
	spec := &request.Spec
	spec.Username, spec.UID, spec.Groups, spec.Extra = "", "", nil, nil
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		spec.Username, spec.UID, spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
		spec.Extra = resource.ConvertExtra[certificatesv1.ExtraValue](u.GetExtra())
	}
	request.Status = certificatesv1.CertificateSigningRequestStatus{}
}

// prepareStatus allows signers to set the certificate and the condition Failed, but not to approve.
func prepareStatus(_ context.Context, request, old *csr) {
	request.Spec = old.Spec
	var kept []certificatesv1.CertificateSigningRequestCondition
	for _, from := range []*csr{old, request} {
		for _, condition := range from.Status.Conditions {
			if decision(condition.Type) == (from == old) {
				kept = append(kept, condition)
			}
		}
	}
	request.Status.Conditions = kept
	stamp(request, old)
}

// prepareApproval allows approvers to write only conditions.
func prepareApproval(_ context.Context, request, old *csr) {
	request.Spec = old.Spec
	request.Status.Certificate = old.Status.Certificate
	stamp(request, old)
}

// stamp sets the times of new conditions. An unchanged condition without times keeps its former times.
func stamp(request, old *csr) {
	before := make(map[certificatesv1.RequestConditionType]certificatesv1.CertificateSigningRequestCondition, len(old.Status.Conditions))
	for _, condition := range old.Status.Conditions {
		before[condition.Type] = condition
	}
	now := metav1.Now()
	for i := range request.Status.Conditions {
		condition := &request.Status.Conditions[i]
		former := before[condition.Type]
		if condition.LastUpdateTime.IsZero() {
			condition.LastUpdateTime = now
			if former.Status == condition.Status && former.Reason == condition.Reason && former.Message == condition.Message && !former.LastUpdateTime.IsZero() {
				condition.LastUpdateTime = former.LastUpdateTime
			}
		}
		if !condition.LastTransitionTime.IsZero() {
			continue
		}
		condition.LastTransitionTime = now
		if former.Status == condition.Status && !former.LastTransitionTime.IsZero() {
			condition.LastTransitionTime = former.LastTransitionTime
		}
	}
}

// admitSigning checks the permission to sign if the certificate or the conditions change.
func (c Config) admitSigning(ctx context.Context, request, old *csr) error {
	if string(request.Status.Certificate) == string(old.Status.Certificate) &&
		equality.Semantic.DeepEqual(request.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	return c.admit(ctx, "sign", request, old)
}

func (c Config) admit(ctx context.Context, verb string, request, old *csr) error {
	u, err := resource.UserFrom(ctx)
	if err != nil {
		return err
	}
	signer := old.Spec.SignerName
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := c.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, Name: name,
			APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("authorizing %s for signer %s: %w", verb, signer, err))
		}
		if decision == authorizer.DecisionAllow {
			return nil
		}
	}
	return apierrors.NewForbidden(certificatesv1.Resource("certificatesigningrequests"), request.Name,
		fmt.Errorf("user not permitted to %s requests with signerName %q", verb, signer))
}
