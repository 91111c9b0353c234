//! What does a user's file say? One Dataset, and the Secrets it names, as for `kubectl apply -f`. Objects of other kinds, such as
//! the Job that reads it, are passed over.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use kube::Resource as _;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::check::{Problem, check_object};
use super::spec::{Dataset, SecretRef};
use super::{credentials, schema};

/// Longest file that is read, bytes: what etcd takes of one object by default.
pub const MAX_BYTES: usize = 1_536 * 1024;

/// Most documents of a file: a Dataset and a Secret for each of its sources.
const MAX_DOCUMENTS: usize = 17;

/// Namespace of objects that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Fields of `metadata`, those included that `kubectl get -o yaml` prints.
const METADATA_FIELDS: [&str; 15] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "selfLink",
];

const SECRET_FIELDS: [&str; 7] =
    ["apiVersion", "kind", "metadata", "type", "data", "stringData", "immutable"];

/// The objects of a file. Valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The Dataset, with its namespace filled in.
    pub dataset: Dataset,
    /// The Secrets, in the order of the file.
    pub secrets: Vec<Secret>,
    /// What else is in the file and is not looked at: kind and name, in the order of the file.
    pub others: Vec<String>,
}

/// A Secret of a file. Its values are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its values.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// What can be wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum ParseManifest {
    /// The file is not a manifest.
    #[error("file has {bytes} bytes: a Dataset and its Secrets have at most {MAX_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// There are more documents than a Dataset can use.
    #[error("file has more than {MAX_DOCUMENTS} documents: keep one Dataset and the Secrets that it names")]
    TooMany,
    /// A document is not YAML.
    #[error("parse document {document} as YAML")]
    Yaml {
        /// Which, from 1.
        document: usize,
        /// What the parser says, with line and column.
        source: serde_yaml::Error,
    },
    /// A document is no object, or one of ours as nobody knows it.
    #[error(
        "document {document} is {kind:?} of {api_version:?}: write Dataset of millrace.dev/v1alpha1 or Secret of v1; objects of other \
         kinds are passed over"
    )]
    Kind {
        /// Which, from 1.
        document: usize,
        /// Its `apiVersion`, empty where it has none.
        api_version: String,
        /// Its `kind`, empty where it has none.
        kind: String,
    },
    /// There is no Dataset.
    #[error("file has no Dataset: add one, with apiVersion: millrace.dev/v1alpha1 and kind: Dataset")]
    NoDataset,
    /// There are several Datasets.
    #[error("file has several Datasets, {names:?}: keep one in each file")]
    SeveralDatasets {
        /// Their names.
        names: Vec<String>,
    },
    /// An object has problems.
    #[error("{kind} {name:?} is not valid:{}", lines(problems))]
    Invalid {
        /// `Dataset` or `Secret`.
        kind: &'static str,
        /// Its name, empty where it has none.
        name: String,
        /// What is wrong with it, at least one problem.
        problems: Vec<Problem>,
    },
}

impl Manifest {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Whatever is wrong with it; problems of fields all at once, object by object.
    pub fn parse(text: &str) -> Result<Self, ParseManifest> {
        let mut datasets = Vec::new();
        let mut secrets = Vec::new();
        let mut others = Vec::new();
        for (at, value) in documents(text)?.into_iter().enumerate() {
            let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
            let (api_version, kind) = (field("apiVersion"), field("kind"));
            match (api_version.as_str(), kind.as_str()) {
                ("millrace.dev/v1alpha1", "Dataset") => datasets.push(value),
                ("v1", "Secret") => secrets.push(secret(&value)?),
                (version, kind) if is_other(version, kind) => {
                    others.push(format!("{kind} {:?}", name_of(&value)));
                }
                _ => return Err(ParseManifest::Kind { document: at + 1, api_version, kind }),
            }
        }
        let names = || datasets.iter().map(|value| name_of(value).to_owned()).collect();
        let dataset = match datasets.as_slice() {
            [] => return Err(ParseManifest::NoDataset),
            [value] => dataset(value)?,
            [_, _, ..] => return Err(ParseManifest::SeveralDatasets { names: names() }),
        };
        Ok(Self { dataset, secrets, others })
    }

    /// The Secret of this name in the Dataset's namespace.
    pub fn secret(&self, name: &str) -> Option<&Secret> {
        let namespace = self.dataset.meta().namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        self.secrets.iter().find(|secret| secret.name == name && secret.namespace == namespace)
    }

    /// Lists what is wrong with the Secrets that the Dataset names: not in the file, or without the keys of credentials. In a
    /// cluster they may be there already, with others.
    pub fn secret_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (at, source) in self.dataset.spec.sources.iter().enumerate() {
            let Some(SecretRef { name }) = &source.s3.credentials.secret_ref else {
                continue;
            };
            let message = match self.secret(name) {
                None => format!(
                    "Secret {name:?} is not in the file: add it as a document of its own, in the Dataset's namespace"
                ),
                Some(secret) => match secret.missing_key() {
                    None => continue,
                    Some(key) => format!("Secret {name:?} has no {key}: add it"),
                },
            };
            let field = format!("spec.sources[{at}].s3.credentials.secretRef.name");
            problems.push(Problem::new(&field, &Value::String(name.clone()), message));
        }
        problems
    }
}

impl Secret {
    /// A key that credentials need and this Secret lacks.
    fn missing_key(&self) -> Option<&'static str> {
        let lacks = |key: &&str| self.data.get(*key).is_none_or(|value| value.trim_ascii().is_empty());
        let needed = if lacks(&credentials::ACCESS_KEY_ID) && !lacks(&credentials::ROLE_ARN) {
            [credentials::ROLE_ARN, credentials::WEB_IDENTITY_TOKEN_FILE]
        } else {
            [credentials::ACCESS_KEY_ID, credentials::SECRET_ACCESS_KEY]
        };
        needed.into_iter().find(lacks)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, namespace, data } = self;
        let keys: Vec<&String> = data.keys().collect();
        f.debug_struct("Secret")
            .field("name", name)
            .field("namespace", namespace)
            .field("keys", &keys)
            .finish()
    }
}

/// The documents of a file that are not empty, without fields that are null.
fn documents(text: &str) -> Result<Vec<Value>, ParseManifest> {
    if text.len() > MAX_BYTES {
        return Err(ParseManifest::TooLong { bytes: text.len() });
    }
    let mut documents = Vec::new();
    for (at, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let yaml = |source| ParseManifest::Yaml { document: at + 1, source };
        // Through a YAML value, which refuses a key given twice.
        let value = serde_yaml::Value::deserialize(document).map_err(yaml)?;
        let mut value: Value = serde_yaml::from_value(value).map_err(yaml)?;
        refuse_null_anonymous(&value)?;
        schema::drop_nulls(&mut value);
        if !value.is_null() {
            documents.push(value);
        }
        if documents.len() > MAX_DOCUMENTS {
            return Err(ParseManifest::TooMany);
        }
    }
    Ok(documents)
}

/// `anonymous:` without `{}` is null, and would mean the opposite of what it says: the SDK's chain.
fn refuse_null_anonymous(value: &Value) -> Result<(), ParseManifest> {
    let sources = value.pointer("/spec/sources").and_then(Value::as_array);
    for (at, source) in sources.into_iter().flatten().enumerate() {
        if let Some(null @ Value::Null) = source.pointer("/s3/credentials/anonymous") {
            let field = format!("spec.sources[{at}].s3.credentials.anonymous");
            let problems =
                vec![Problem::new(&field, null, "null means that it is not given: write \"anonymous: {}\"")];
            return Err(ParseManifest::Invalid {
                kind: "Dataset",
                name: name_of(value).to_owned(),
                problems,
            });
        }
    }
    Ok(())
}

fn dataset(value: &Value) -> Result<Dataset, ParseManifest> {
    let name = name_of(value).to_owned();
    let invalid = |problems| ParseManifest::Invalid { kind: "Dataset", name: name.clone(), problems };
    let mut problems = unknown_fields(value, &["apiVersion", "kind", "metadata", "spec", "status"], "");
    problems.extend(metadata_problems(value));
    problems.extend(check_object(value, None));
    if !problems.is_empty() {
        return Err(invalid(problems));
    }
    let mut dataset: Dataset = serde_json::from_value(value.clone())
        .map_err(|error| invalid(vec![Problem::new("spec", &value["spec"], error.to_string())]))?;
    let problems = dataset.check();
    if !problems.is_empty() {
        return Err(invalid(problems));
    }
    dataset.meta_mut().namespace.get_or_insert_with(|| DEFAULT_NAMESPACE.to_owned());
    Ok(dataset)
}

fn secret(value: &Value) -> Result<Secret, ParseManifest> {
    let mut problems = unknown_fields(value, &SECRET_FIELDS, "");
    problems.extend(metadata_problems(value));
    let mut data = BTreeMap::new();
    let none = Map::new();
    let map = |name: &str| value.get(name).and_then(Value::as_object).unwrap_or(&none);
    // Values are left out of all messages.
    for (key, value) in map("data") {
        match serde_json::from_value::<ByteString>(value.clone()) {
            Ok(ByteString(bytes)) => drop(data.insert(key.clone(), bytes)),
            Err(_) => problems.push(Problem::new(
                &format!("data.{key}"),
                &Value::Null,
                "value is not base64: encode it, or put it as it is into stringData",
            )),
        }
    }
    for (key, value) in map("stringData") {
        match value.as_str() {
            Some(text) => drop(data.insert(key.clone(), text.as_bytes().to_vec())),
            None => problems.push(Problem::new(
                &format!("stringData.{key}"),
                &Value::Null,
                "value is not a text: write it in quotes",
            )),
        }
    }
    for key in data.keys().filter(|key| !credentials::ALL.contains(&key.as_str())) {
        if let Some(near) = schema::nearest(key, credentials::ALL.into_iter()) {
            problems.push(Problem::new(
                key,
                &Value::Null,
                format!("key {key:?} is not read: did you mean {near:?}?"),
            ));
        }
    }
    let name = name_of(value).to_owned();
    if !problems.is_empty() {
        return Err(ParseManifest::Invalid { kind: "Secret", name, problems });
    }
    let namespace = value.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(DEFAULT_NAMESPACE);
    Ok(Secret { name, namespace: namespace.to_owned(), data })
}

/// Whether an object is none of ours. One of ours with another version is a mistake that would go unnoticed otherwise.
fn is_other(api_version: &str, kind: &str) -> bool {
    let is_ours = api_version.starts_with("millrace.dev/") || matches!(kind, "Dataset" | "Secret");
    !api_version.is_empty() && !kind.is_empty() && !is_ours
}

fn name_of(value: &Value) -> &str {
    value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("")
}

fn metadata_problems(value: &Value) -> Vec<Problem> {
    let metadata = value.get("metadata").unwrap_or(&Value::Null);
    let mut problems = unknown_fields(metadata, &METADATA_FIELDS, "metadata.");
    if name_of(value).is_empty() {
        let given = metadata.get("name").unwrap_or(&Value::Null);
        problems.push(Problem::new(
            "metadata.name",
            given,
            format!("{given} is no name: give one, in quotes if it is a number"),
        ));
    }
    problems
}

fn unknown_fields(value: &Value, known: &[&str], before: &str) -> Vec<Problem> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| !known.contains(&name.as_str()))
        .map(|(name, value)| {
            let cure = match schema::nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "leave it away".to_owned(),
            };
            // A Secret's value may be beside its fields by mistake.
            let value = if before.is_empty() { &Value::Null } else { value };
            Problem::new(&format!("{before}{name}"), value, format!("unknown field {name:?}: {cure}"))
        })
        .collect()
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("\n  {problem}")).collect()
}
