// Package certificates describes the resources of certificates.k8s.io: certificate signing requests. The server stores,
// approves and denies them. Controllers of the signer's owner sign them.
package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request/rsakeys"
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

var specDoc = certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()

var requests = &resource.Resource[*csr, *certificatesv1.CertificateSigningRequestList]{
	ShortNames: []string{"csr"},
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
		{Name: "SignerName", Description: specDoc["signerName"], Cell: func(r *csr) any { return r.Spec.SignerName }},
		{Name: "Requestor", Description: specDoc["request"], Cell: func(r *csr) any { return r.Spec.Username }},
		{Name: "RequestedDuration", Description: specDoc["expirationSeconds"], Cell: requestedDuration},
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
	text := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		text = "Denied"
	case has[certificatesv1.CertificateApproved]:
		text = "Approved"
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

const (
	minExpirationSeconds = 600
	// maxSignerNameLength is the maximum length of a domain and a path.
	maxSignerNameLength = 571
)

var (
	spec        = field.NewPath("spec")
	certificate = field.NewPath("status", "certificate")
	conditions  = field.NewPath("status", "conditions")

	usages = []certificatesv1.KeyUsage{
		certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
		certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
		certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign, certificatesv1.UsageEncipherOnly,
		certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny, certificatesv1.UsageServerAuth,
		certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection,
		certificatesv1.UsageSMIME, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
		certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
	}
)

type csr = certificatesv1.CertificateSigningRequest

// decision reports whether approvers, not signers, write a condition.
func decision(kind certificatesv1.RequestConditionType) bool {
	return kind == certificatesv1.CertificateApproved || kind == certificatesv1.CertificateDenied
}

func validateNew(request *csr) field.ErrorList {
	errs := validate.ObjectMeta(request, false, apivalidation.NameIsDNSSubdomain)
	if err := checkRequest(request.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(spec.Child("request"), request.Spec.Request, err.Error()))
	}
	if len(request.Spec.Usages) == 0 {
		errs = append(errs, field.Required(spec.Child("usages"), ""))
	}
	if n := len(request.Spec.Usages); n > len(usages) { // some are duplicates or unknown
		return append(errs, field.TooMany(spec.Child("usages"), n, len(usages)))
	}
	seen := validate.Seen[certificatesv1.KeyUsage]{}
	for i, usage := range request.Spec.Usages {
		path := spec.Child("usages").Index(i)
		if !slices.Contains(usages, usage) {
			errs = append(errs, field.NotSupported(path, usage, usages))
		}
		errs = append(errs, seen.Add(usage, path)...)
	}
	errs = append(errs, signerName(request.Spec.SignerName)...)
	if seconds := request.Spec.ExpirationSeconds; seconds != nil && *seconds < minExpirationSeconds {
		errs = append(errs, field.Invalid(spec.Child("expirationSeconds"), *seconds, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

// checkRequest checks that a request is signed with its own key.
func checkRequest(content []byte) error {
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	if err := rsakeys.Check(request.PublicKey); err != nil {
		return err
	}
	return request.CheckSignature()
}

func signerName(name string) field.ErrorList {
	path := spec.Child("signerName")
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(rest, "/") {
		return field.ErrorList{field.Invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Subdomain(domain) {
		errs = append(errs, field.Invalid(path, domain, "validating label: "+msg))
	}
	if domain == "kubernetes.io" && rest == "legacy-unknown" {
		errs = append(errs, field.Invalid(path, name, "the legacy signerName is not allowed via this API version"))
	}
	if !strings.Contains(domain, ".") {
		errs = append(errs, field.Invalid(path, domain, "should be a domain with at least two segments separated by dots"))
	}
	for segment := range strings.SplitSeq(rest, ".") {
		errs = append(errs, validate.Messages(path, rest, validation.IsDNS1123Label(segment))...)
	}
	if len(name) > maxSignerNameLength {
		errs = append(errs, field.TooLong(path, "", maxSignerNameLength))
	}
	return errs
}

func validateStatus(_ context.Context, request, old *csr) field.ErrorList {
	errs := validateConditions(request, old, false)
	if len(old.Status.Certificate) > 0 && string(old.Status.Certificate) != string(request.Status.Certificate) {
		return append(errs, field.Forbidden(certificate, "updates may not change the certificate of a request that has one"))
	}
	if len(request.Status.Certificate) > 0 && len(old.Status.Certificate) == 0 {
		if err := checkCertificate(request.Status.Certificate); err != nil {
			errs = append(errs, field.Invalid(certificate, "<certificate data>", err.Error()))
		}
	}
	return errs
}

// checkCertificate checks that content has only PEM blocks with certificates.
func checkCertificate(content []byte) error {
	found := false
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return errors.New("no PEM block headers are permitted")
		}
		if _, err := x509.ParseCertificates(block.Bytes); err != nil {
			return err
		}
		found = true
	}
	if !found {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

func validateApproval(_ context.Context, request, old *csr) field.ErrorList {
	return validateConditions(request, old, true)
}

// validateConditions validates the conditions of a status. Decisions must not be reverted.
func validateConditions(request, old *csr, approval bool) field.ErrorList {
	errs := validate.ObjectMetaUpdate(request, old)
	seen := validate.Seen[certificatesv1.RequestConditionType]{}
	for i, condition := range request.Status.Conditions {
		errs = append(errs, validateCondition(condition, conditions.Index(i))...)
		errs = append(errs, seen.Add(condition.Type, conditions.Index(i).Child("type"))...)
	}
	if seen[certificatesv1.CertificateApproved] && seen[certificatesv1.CertificateDenied] {
		errs = append(errs, field.Invalid(conditions, "Denied", "Approved and Denied conditions are mutually exclusive"))
	}
	lasting := []certificatesv1.RequestConditionType{certificatesv1.CertificateFailed}
	if approval {
		lasting = append(lasting, certificatesv1.CertificateApproved, certificatesv1.CertificateDenied)
	}
	for _, kind := range lasting {
		if !reflect.DeepEqual(ofType(old, kind), ofType(request, kind)) && len(ofType(old, kind)) > 0 {
			errs = append(errs, field.Forbidden(conditions, fmt.Sprintf("updates may not remove or change a condition of type %q", kind)))
		}
	}
	return errs
}

func validateCondition(condition certificatesv1.CertificateSigningRequestCondition, path *field.Path) field.ErrorList {
	switch {
	case condition.Type == "":
		return field.ErrorList{field.Required(path.Child("type"), "")}
	case condition.Status == "":
		return field.ErrorList{field.Required(path.Child("status"), "")}
	}
	all := []corev1.ConditionStatus{corev1.ConditionTrue}
	if !decision(condition.Type) && condition.Type != certificatesv1.CertificateFailed {
		all = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	}
	if !slices.Contains(all, condition.Status) {
		return field.ErrorList{field.NotSupported(path.Child("status"), condition.Status, all)}
	}
	return nil
}

// ofType returns the statuses of conditions of a type. Their times and messages may change.
func ofType(request *csr, kind certificatesv1.RequestConditionType) []corev1.ConditionStatus {
	var found []corev1.ConditionStatus
	for _, condition := range request.Status.Conditions {
		if condition.Type == kind {
			found = append(found, condition.Status)
		}
	}
	return found
}
