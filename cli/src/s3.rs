//! How does the embedded S3 server run as a program?

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use millrace_s3_server::auth::{Access, Credentials};
use millrace_s3_server::config::{BucketConfig, Config, TlsConfig};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::server::S3Server;
use millrace_s3_server::sts::StsConfig;

use crate::args::{Output, S3ServeArgs};
use crate::exit;

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// What is wrong with an argument, or why the server does not start.
pub async fn serve(args: &S3ServeArgs) -> anyhow::Result<()> {
    let stop = crate::signals::stop()?;
    let config = config(args)?;
    let names: Vec<String> = config.buckets.iter().map(|bucket| bucket.name.clone()).collect();
    let server = S3Server::start(config).await?;
    let ca_file = server.ca_pem().map(|pem| write_ca(args.ca_file.as_deref(), pem, &server)).transpose()?;
    exit::print(&addresses(args.output, &server, &names, ca_file.as_deref()))?;
    stop.cancelled().await;
    server.shutdown().await;
    if let (Some(written), None) = (&ca_file, &args.ca_file) {
        // Nobody can use it any more; a file that is gone already is no harm.
        let _ = std::fs::remove_file(written);
    }
    Ok(())
}

fn config(args: &S3ServeArgs) -> anyhow::Result<Config> {
    let access = match (&args.access_key, &args.secret_key) {
        (Some(id), Some(secret)) => {
            let mut credentials = Credentials::new(id, secret);
            credentials.session_token = args.session_token.clone();
            Access::Signed { credentials: vec![credentials], anonymous: args.anonymous }
        }
        // Whoever has exchanged a token signs with what he got.
        _ if args.sts => Access::Signed { credentials: Vec::new(), anonymous: false },
        _ => Access::Anyone,
    };
    let sts = args
        .sts
        .then(|| StsConfig { tokens: args.sts_token.iter().cloned().collect(), ..StsConfig::default() });
    Ok(Config {
        listen: args.listen,
        admin: Some(args.admin),
        buckets: buckets(args)?,
        access,
        sts,
        tls: args.tls.then(|| TlsConfig { names: names_in_certificate(args) }),
        faults: args.faults.as_deref().map(fault_plan).transpose()?.unwrap_or_default(),
        ..Config::default()
    })
}

fn buckets(args: &S3ServeArgs) -> anyhow::Result<Vec<BucketConfig>> {
    let mut buckets = Vec::new();
    if let Some(dir) = &args.dir {
        let name = match &args.bucket {
            Some(name) => name.clone(),
            None => own_name(dir)?,
        };
        buckets.push(BucketConfig::new(name, dir.clone()));
    }
    let mut specs = args.synthetic.clone().map(|specs| specs.0).unwrap_or_default();
    if let (None, Some(name)) = (&args.dir, &args.bucket) {
        match specs.as_mut_slice() {
            [only] => only.bucket = name.clone(),
            several => bail!(
                "--bucket {name:?}: {} synthetic buckets, give each its name in --synthetic (bucket=...)",
                several.len()
            ),
        }
    }
    buckets.extend(specs.into_iter().map(|spec| BucketConfig::new(spec.bucket.clone(), spec)));
    if let Some(region) = &args.region {
        buckets = buckets.into_iter().map(|bucket| bucket.in_region(region)).collect();
    }
    Ok(buckets)
}

fn own_name(dir: &Path) -> anyhow::Result<String> {
    let path = dir
        .canonicalize()
        .with_context(|| format!("serve folder {dir:?}: it must be a folder that can be read"))?;
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase());
    name.with_context(|| format!("folder {dir:?} has no name: give the bucket one with --bucket"))
}

/// The address that clients call us by, where it is not the local one.
fn names_in_certificate(args: &S3ServeArgs) -> Vec<String> {
    let ip = args.listen.ip();
    if ip.is_unspecified() { Vec::new() } else { vec![ip.to_string()] }
}

fn fault_plan(file: &Path) -> anyhow::Result<FaultPlan> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read --faults {file:?}"))?;
    FaultPlan::from_yaml(&text).with_context(|| format!("--faults {file:?}"))
}

fn write_ca(file: Option<&Path>, pem: &str, server: &S3Server) -> anyhow::Result<PathBuf> {
    let file = match file {
        Some(file) => file.to_owned(),
        None => std::env::temp_dir().join(format!("millrace-s3-{}-ca.pem", server.address().port())),
    };
    std::fs::write(&file, pem).with_context(|| format!("write --ca-file {file:?}"))?;
    Ok(file)
}

fn addresses(output: Output, server: &S3Server, buckets: &[String], ca_file: Option<&Path>) -> String {
    let admin = server.admin_url().unwrap_or_default();
    match output {
        Output::Text => {
            let mut text =
                format!("endpoint: {}\nadmin: {admin}\nbuckets: {}\n", server.endpoint(), buckets.join(" "));
            if let Some(file) = ca_file {
                text.push_str(&format!("ca: {}\n", file.display()));
            }
            text
        }
        Output::Json => {
            let value = serde_json::json!({
                "endpoint": server.endpoint(), "admin": admin, "buckets": buckets, "caFile": ca_file,
            });
            format!("{value}\n")
        }
    }
}
