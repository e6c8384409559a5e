module example.com/nested

go 1.26

require k8s.io/kubectl v0.37.2
